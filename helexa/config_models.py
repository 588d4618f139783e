"""The configuration of a model that is served beside the first one, under the name of its section, [models.NAME]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helexa.config_types import key

Loading = Literal["start", "request"]
Quant = Literal["", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4k"]  # those of helexa/formats/quantise.py
QUANT_DOC = "What the model's float matrices are quantised to as it is loaded (docs/models.md); empty: they stay."


@dataclass(frozen=True)
class ListedModel:
    source: str = key("", "The model: an alias, or scheme:name (docs/models.md).", reload="live")
    context: int = key(0, "Longest prompt + output; 0: what the model was trained for.", unit="tokens", least=0, reload="live")
    quant: Quant = key("", QUANT_DOC, reload="live")
    load: Loading = key("request", "When it is loaded: as helexa starts, or on the first request for it.", reload="live")
    pinned: bool = key(False, "Whether it keeps its memory even while another model waits for room.", reload="live")
