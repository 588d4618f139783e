"""What the resources share in one web worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helexa.config import Config
from helexa.web.engine_client import EngineClient
from helexa.web.grammar_check import GrammarChecker
from helexa.web.model_text import ModelTexts


@dataclass
class Services:
    config: Config
    run_dir: Path
    engine: EngineClient
    texts: ModelTexts = field(default_factory=ModelTexts)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)

    async def process_startup(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Falcon calls it as the worker starts, after the fork."""
        self.engine.open()

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        self.engine.close()
        self.grammars.close()
