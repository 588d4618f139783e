"""Hybrid models against `transformers`, an outside implementation, in float32, on tiny random checkpoints in both formats; and bit
for bit against themselves: in chunks, in company, recorded, and from snapshots of their recurrent state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_checkpoints import CASES, VOCAB, Case, Outside, make, write_folder, write_gguf
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import open_checkpoint
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.hybrid import Hybrid
from workers.models.registry import load_model
from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops, RawTensor, Value
from workers.ops.reference import ReferenceOps

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

Float32 = NDArray[np.float32]
ROWS, SLOTS, BLOCKS = 128, 8, 128
SEQUENCES = [np.random.default_rng(length).integers(0, VOCAB, length).tolist() for length in (150, 7, 70)]
REPETITIVE = [[5] * 200, [5, 9] * 100, [5, 5, 9, 5] * 50]


@dataclass(frozen=True)
class OpSet:
    """`half`: keys and values are float16, as in the ops that serve; then they are in the outside model too. `tolerance` is the most
    that a logit may be off, where their spread is a little less than 1."""

    make: Callable[[], Ops]
    half: bool
    tolerance: float


OPS = {
    "float32": OpSet(lambda: ReferenceOps(1, kv_type=np.float32), half=False, tolerance=1e-4),
    "reference": OpSet(lambda: ReferenceOps(1), half=True, tolerance=2e-3),
}
if library.why_missing() is None:
    OPS["native"] = OpSet(lambda: NativeOps(2, ROWS, ROWS), half=True, tolerance=2e-3)
EXACT = [name for name in OPS if name != "float32"]


@dataclass
class Made:
    outside: Outside
    paths: dict[str, Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Made]:
    made: dict[str, Made] = {}

    def of(case: Case) -> Made:
        if case.name not in made:
            folder, outside = tmp_path_factory.mktemp(case.name), make(case)
            paths = {
                "safetensors": write_folder(case, outside, folder / "hf"),
                "gguf": write_gguf(case, outside, folder / "model.gguf"),
            }
            made[case.name] = Made(outside, paths)
        return made[case.name]

    return of


@dataclass
class Steps:
    """Steps of a model on ops, without an engine: sequences own scattered blocks and a slot, parts are computed as told."""

    model: Hybrid
    ops: Ops
    computed: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    used: int = 0

    @classmethod
    def of(cls, path: Path, ops: Ops) -> Steps:
        model = load_model(open_checkpoint(path), ops)
        assert isinstance(model, Hybrid)
        ops.allocate_kv(model.layers + 1, BLOCKS, model.kv_heads, model.head_dim)
        ops.allocate_state(model.recurrent, SLOTS)
        return cls(model, ops)

    def step(self, parts: dict[int, list[int]], forward: Callable[[Ops], Value] | None = None) -> dict[int, Float32]:
        """The logits of every new row, by sequence, whose number is its slot."""
        counts = [len(ids) for ids in parts.values()]
        starts = [self.computed.get(sequence, 0) for sequence in parts]
        for (sequence, ids), start in zip(parts.items(), starts, strict=True):
            table = self.tables.setdefault(sequence, [])
            while len(table) * BLOCK_SIZE < start + len(ids):
                table.append(self.used * 5 % BLOCKS)
                self.used += 1
            self.computed[sequence] = start + len(ids)
        widest = max(len(self.tables[sequence]) for sequence in parts)
        inputs = StepInputs(
            token_ids=np.array([token for ids in parts.values() for token in ids], np.int32),
            positions=np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)]).astype(np.int32),
            sequence_of_row=np.repeat(np.arange(len(parts)), counts).astype(np.int32),
            row_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            context_lens=np.array([self.computed[sequence] for sequence in parts], np.int32),
            block_tables=np.array([self.tables[s] + [0] * (widest - len(self.tables[s])) for s in parts], np.int32),
            logit_rows=np.arange(sum(counts), dtype=np.int32),
            state_slots=np.array(list(parts), np.int32),
        )
        logits = self.ops.run(forward or self.model.forward, inputs).copy()
        return dict(zip(parts, np.split(logits, np.cumsum(counts)[:-1]), strict=True))

    def alone(self, slot: int, ids: list[int], chunks: Sequence[int]) -> Float32:
        """All logits of a sequence that is computed by itself, in chunks of those sizes and the rest."""
        self.computed.pop(slot, None)
        self.tables.pop(slot, None)
        got, at = [], 0
        for count in [*chunks, *[ROWS] * (len(ids) // ROWS + 1)]:
            if at < len(ids):
                got.append(self.step({slot: ids[at : at + count]})[slot])
            at += count
        return np.concatenate(got)


ALL = [pytest.param(case, source, id=f"{case}-{source}") for case in CASES for source in ("safetensors", "gguf")]


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case,source", ALL)
def test_logits_at_every_position(checkpoints: Any, case: Case, source: str, ops: str) -> None:
    """Three ragged sequences in one batch, prefilled in chunks and then token by token, beside the outside model's; and one that
    goes on from another's blocks and state, equal to it."""
    made, chosen = checkpoints(case), OPS[ops]
    expected = [made.outside.logits(ids, chosen.half) for ids in SEQUENCES]
    steps = Steps.of(made.paths[source], chosen.make())
    got: list[list[Float32]] = [[], [], []]
    for counts in ((48, 5, 63), (1, 1, 1), (70, 1, 0), (1, 0, 1), (1, 0, 1), (29, 0, 4)):
        done = [steps.computed.get(index, 0) for index in range(3)]
        parts = {i: SEQUENCES[i][done[i] : done[i] + count] for i, count in enumerate(counts) if count}
        for index, logits in steps.step(parts).items():
            got[index].append(logits)
        if done[0] == 0:
            steps.ops.copy_state(0, 5)  # behind 48 tokens: a snapshot
    for logits, right in zip(got, expected, strict=True):
        off = np.abs(np.concatenate(logits) - right).max()
        assert off < chosen.tolerance
    assert np.std(expected[0]) > 0.3, "logits too small to tell anything"
    steps.ops.copy_state(5, 3)
    steps.tables[3], steps.computed[3] = steps.tables[0][:3], 48
    assert steps.step({3: SEQUENCES[0][48:]})[3].tobytes() == np.concatenate(got[0])[48:].tobytes()


@pytest.mark.parametrize("ops", EXACT)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_and_company_do_not_change_bits(checkpoints: Any, case: Case, ops: str) -> None:
    """Chunks of 1, 17 and all at once, another slot, and company that comes and goes."""
    steps = Steps.of(checkpoints(case).paths["safetensors"], OPS[ops].make())
    ids = SEQUENCES[0][:90]
    whole = steps.alone(0, ids, []).tobytes()
    assert steps.alone(6, ids, [1] * 90).tobytes() == whole
    assert steps.alone(2, ids, [17] * 6).tobytes() == whole
    steps.computed.clear()
    steps.tables.clear()
    rows, at = [], 0
    for turn, count in enumerate((3, 16, 1, 1, 40, 2, 27)):
        parts = {1: SEQUENCES[2][turn * 3 : turn * 3 + 3], 4: ids[at : at + count]}
        rows.append(steps.step(parts if turn % 3 else {4: parts[4]})[4])
        at += count
    assert np.concatenate(rows).tobytes() == whole


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("ids", REPETITIVE, ids=["one", "two", "four"])
def test_repetitive_text(checkpoints: Any, ids: list[int], ops: str) -> None:
    """Keys that are all alike: every logit is a number, and close to the outside model's."""
    made = checkpoints(CASES[3])
    got = Steps.of(made.paths["gguf"], OPS[ops].make()).alone(0, ids, [64])
    assert np.isfinite(got).all()
    assert np.abs(got - made.outside.logits(ids, OPS[ops].half)).max() < OPS[ops].tolerance


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case,source", ALL)
def test_mtp_head(checkpoints: Any, case: Case, source: str, ops: str) -> None:
    """The head over the model's output and the next tokens' embeddings, as modules of `transformers` compute it."""
    made, chosen = checkpoints(case), OPS[ops]
    ids, next_ids = SEQUENCES[2][:-1], SEQUENCES[2][1:]
    hidden = made.outside.hidden(ids)
    embedded = made.outside.model.model.embed_tokens.weight.detach().numpy()[next_ids]
    steps = Steps.of(made.paths[source], chosen.make())
    tables = [_table(steps.ops, values) for values in (hidden, embedded)]
    rows = list(range(len(ids)))  # row i of both tables
    got = steps.step({0: rows}, lambda ops: steps.model.mtp_forward(ops, *(ops.embed(table) for table in tables)))[0]
    expected = made.outside.mtp_logits(hidden, next_ids)
    assert np.abs(got - expected).max() < chosen.tolerance and np.std(expected) > 0.3


def _table(ops: Ops, values: Float32) -> Any:
    data = np.ascontiguousarray(values, np.float32)
    return ops.matrix([RawTensor("table", "F32", data.shape, data.reshape(-1).view(np.uint8))])


def test_wrong_configs_are_refused(checkpoints: Any, tmp_path: Path) -> None:
    """Each says what is wrong."""
    import json
    import shutil

    folder = checkpoints(CASES[0]).paths["safetensors"]
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"layer_types": ["linear_attention"] * 4}, "without an attention layer"),
        ({"layer_types": ["mamba"] * 4}, "layer_types are not 4"),
        ({"linear_num_value_heads": 5}, "cannot share"),
        ({"linear_conv_kernel_dim": 1}, "1 taps"),
        ({"attention_bias": True}, "attention_bias = True is not served"),
        ({"attn_output_gate": False}, "attn_output_gate = False is not served"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu is not served"),
        ({"hidden_size": 0}, "is not a size"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope scaling `yarn`"),
        ({"linear_key_head_dim": 8}, "has shape"),
    ):
        copy = tmp_path / message.replace(" ", "-").replace("`", "")
        shutil.copytree(folder, copy)
        (copy / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelFileError, match=message):
            load_model(open_checkpoint(copy), ReferenceOps(1))
