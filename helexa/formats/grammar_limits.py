"""Bounds on grammars, for the check at the door and for the device worker alike: what passes the one compiles in the other."""

from __future__ import annotations

from typing import Any

# Arguments of llguidance's LLParserLimits: items a row, fuel to compile and for each step, states, symbols. A step costs at most
# some 10 ms, compiling some 50 ms.
LIMITS: dict[str, Any] = {
    "max_items_in_row": 500,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
}
