"""Every registered architecture on the CUDA ops: whole tiny models, prompts in chunks and decoding from graphs, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hybrid_checkpoints as hybrid
import numpy as np
import pytest
import tiny_checkpoints as plain
from cuda_places import place_of
from numpy.typing import NDArray

from helexa.formats.checkpoint import open_checkpoint
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import ARCHITECTURES, RecurrentModel, load_model
from workers.ops.cuda.ops import CudaOps
from workers.ops.reference import ReferenceOps

pytest.importorskip("transformers", minversion="5.0")

Float32 = NDArray[np.float32]
ROWS, SEATS, BLOCKS = 64, 4, 24
PROMPTS = [np.random.default_rng(length).integers(0, plain.VOCAB, length + 3).tolist() for length in (21, 5)]
LENGTHS = (21, 5)  # of the prompts; three tokens more are decoded

_SMALL = {
    "vocab_size": plain.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_GEMMA = {"query_pre_attn_scalar": 20, "sliding_window": 9}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_HYBRID = {
    "intermediate_size": 96,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "num_hidden_layers": 2,
    "layer_types": [hybrid.LINEAR, hybrid.FULL],
}
_HYBRID_MOE = {**_HYBRID, **_MOE, "shared_expert_intermediate_size": 64}

# by the names of the registry that one test stands for: those of the same loader
CASES: dict[str, plain.Case | hybrid.Case] = {
    "llama mistral": plain.Case("llama", "Llama", "llama", {**_SMALL, "attention_bias": True}),
    "qwen2": plain.Case("qwen2", "Qwen2", "qwen2", _SMALL),
    "qwen3": plain.Case("qwen3", "Qwen3", "qwen3", _SMALL),
    "smollm3": plain.Case("smollm3", "SmolLM3", "smollm3", {**_SMALL, "no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "gemma2": plain.Case(
        "gemma2", "Gemma2", "gemma2", {**_SMALL, **_GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0}
    ),
    "gemma3 gemma3_text": plain.Case(
        "gemma3", "Gemma3", "gemma3", {**_SMALL, **_GEMMA, "layer_types": ["full_attention", "sliding_attention"]}
    ),
    "qwen3_moe qwen3moe": plain.Case(
        "moe", "Qwen3Moe", "qwen3moe", {**_SMALL, **_MOE, "mlp_only_layers": [1], "norm_topk_prob": False}
    ),
    "qwen3_next qwen3next": hybrid.Case("next", "Qwen3Next", "qwen3next", _HYBRID_MOE),
    "qwen3_5 qwen3_5_text qwen35": hybrid.Case("35", "Qwen3_5", "qwen35", _HYBRID),
    "qwen3_5_moe qwen3_5_moe_text qwen35moe": hybrid.Case(
        "35-moe", "Qwen3_5Moe", "qwen35moe", {**_HYBRID_MOE, "norm_topk_prob": True}
    ),
}


def test_every_architecture_has_a_case() -> None:
    """A new line of the registry needs one here."""
    assert {name for names in CASES for name in names.split()} == set(ARCHITECTURES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def of(names: str) -> Path:
        if names not in made:
            case, folder = CASES[names], tmp_path_factory.mktemp("family")
            if isinstance(case, plain.Case):
                made[names] = plain.write_folder(plain.make_model(case), folder)
            else:
                made[names] = hybrid.write_folder(case, hybrid.make(case), folder)
        return made[names]

    return of


class Steps:
    """A model on ops: sequence b owns every third block from b, and slot 2 - b."""

    def __init__(self, folder: Path, ops: Any) -> None:
        self.ops, self.model = ops, load_model(open_checkpoint(folder), ops)
        ops.allocate_kv(self.model.layers, BLOCKS, self.model.kv_heads, self.model.head_dim)
        if isinstance(self.model, RecurrentModel):
            ops.allocate_state(self.model.recurrent, SEATS)
        self.computed = [0, 0]

    def run(self, counts: dict[int, int]) -> list[Float32]:
        """So many more tokens of sequences; the logits of each one's rows."""
        starts = {sequence: self.computed[sequence] for sequence in counts}
        row_start = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int32)
        tables = np.array([[3 * block + sequence for block in range(BLOCKS // 3)] for sequence in counts], np.int32)
        inputs = StepInputs(
            token_ids=np.array([PROMPTS[s][starts[s] + i] for s, count in counts.items() for i in range(count)], np.int32),
            positions=np.array([starts[s] + i for s, count in counts.items() for i in range(count)], np.int32),
            sequence_of_row=np.repeat(np.arange(len(counts), dtype=np.int32), list(counts.values())),
            row_start=row_start,
            context_lens=np.array([starts[s] + count for s, count in counts.items()], np.int32),
            block_tables=tables,
            logit_rows=np.arange(row_start[-1], dtype=np.int32),
            state_slots=np.array([2 - sequence for sequence in counts], np.int32),
        )
        assert int(inputs.context_lens.max()) <= BLOCK_SIZE * tables.shape[1]
        logits = np.array(self.ops.run(self.model.forward, inputs))
        for sequence, count in counts.items():
            self.computed[sequence] += count
        return np.split(logits, row_start[1:-1])

    def all(self, steps: list[dict[int, int]]) -> list[Float32]:
        """The logits of each sequence's rows, over several steps."""
        rows: list[list[Float32]] = [[], []]
        for counts in steps:
            for sequence, logits in zip(counts, self.run(counts), strict=True):
                rows[sequence].append(logits)
        return [np.concatenate(parts) for parts in rows]


TOGETHER = [{0: LENGTHS[0], 1: LENGTHS[1]}, *[{0: 1, 1: 1}] * 3]
IN_PARTS = [{0: 16}, {1: 2, 0: 4}, {1: 3, 0: 1}, {1: 1}, *[{0: 1, 1: 1}] * 2, {0: 1}]


@pytest.mark.parametrize("names", CASES, ids=lambda names: str(names).split()[0])
def test_a_whole_model(folders: Callable[[str], Path], names: str) -> None:
    """Logits as the reference's, but for the rounding of float16 keys and values that lie between; decode steps from graphs; and the
    same bits however the prompts are cut and whoever is computed beside them."""
    folder = folders(names)
    model = Steps(folder, CudaOps(place_of(), ROWS))
    got, expected = model.all(TOGETHER), Steps(folder, ReferenceOps(1)).all(TOGETHER)
    for ours, reference in zip(got, expected, strict=True):
        assert np.abs(ours - reference).max() < 2e-3 * max(1.0, float(reference.std()))
    graphs = model.ops.graphs
    assert (graphs.captures, graphs.replays, graphs.fallbacks) == (1, 2, 2)
    again = Steps(folder, CudaOps(place_of("random"), ROWS)).all(IN_PARTS)
    for ours, cut in zip(got, again, strict=True):
        assert ours.tobytes() == cut.tobytes()
