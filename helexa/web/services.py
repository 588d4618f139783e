"""What the resources share in one web worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helexa.config import Config
from helexa.web.engine_client import EngineClient
from helexa.web.grammar_check import GrammarChecker
from helexa.web.model_text import ModelTexts
from helexa.web.tracing import NoTraces, Tracer, open_tracer


@dataclass
class Services:
    config: Config
    run_dir: Path
    engine: EngineClient
    texts: ModelTexts = field(default_factory=ModelTexts)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    tracer: Tracer = field(default_factory=NoTraces)

    async def process_startup(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Falcon calls it as the worker starts, after the fork."""
        self.engine.open()
        self.tracer = open_tracer(self.config.tracing)

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        self.engine.close()
        self.grammars.close()
        await asyncio.to_thread(self.tracer.close)
