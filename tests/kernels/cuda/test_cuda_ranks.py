"""Ranks on GPUs, each a device worker on the emulator, whose boards are shared as GPUs share theirs: the tokens and digests of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.0")

import hybrid_checkpoints as hybrid
import tiny_checkpoints as plain
from rank_processes import RankProcesses, everything

pytestmark = pytest.mark.process

_SMALL = {
    "vocab_size": plain.VOCAB,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
PLAIN = plain.Case("llama", "Llama", "llama", _SMALL)
HYBRID = hybrid.Case(
    "next",
    "Qwen3Next",
    "qwen3next",
    {
        "num_hidden_layers": 2,
        "layer_types": [hybrid.LINEAR, hybrid.FULL],
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three KV heads: of two ranks one holds one of them, the other two."""
    return {"safetensors": str(plain.write_folder(plain.make_model(PLAIN), tmp_path_factory.mktemp("llama")))}


def seen(
    folder: Path, files: dict[str, str], ranks: int, *arguments: str, recurrent: bool = False
) -> tuple[list[Any], list[Any]]:
    """What a script of plans made, and what the ranks said when they were loaded."""
    with RankProcesses(folder, files, ranks, ["--device", "cuda", *arguments], "cuda_worker") as group:
        loaded = group.load()
        group.allocate(snapshots=2 if recurrent else 0)
        return everything(group.step, plain.VOCAB, recurrent).seen, loaded


@pytest.fixture(scope="module")
def alone(llama: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return seen(tmp_path_factory.mktemp("alone"), llama, 1)[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_make_what_one_makes(llama: dict[str, str], alone: list[Any], ranks: int, tmp_path: Path) -> None:
    """Through each other's memory, prompts kernel by kernel and decoding from graphs."""
    made, loaded = seen(tmp_path, llama, ranks)
    assert len({hash for row in alone for hash in row[4].values()}) > 15
    assert made == alone and [item.remedy for item in loaded] == [""] * ranks


def test_ranks_whose_gpus_do_not_map_each_other(llama: dict[str, str], alone: list[Any], tmp_path: Path) -> None:
    """Through the host's memory, and they say so."""
    made, loaded = seen(tmp_path, llama, 2, "--alone")
    assert made == alone and all("go through the host's memory, without graphs" in item.remedy for item in loaded)


def test_a_group_that_was_left_is_followed_by_another(llama: dict[str, str], alone: list[Any], tmp_path: Path) -> None:
    """A new scheduler: the ranks share new boards, and make the same."""
    with RankProcesses(tmp_path, llama, 2, ["--device", "cuda"], "cuda_worker") as group:
        for _ in range(2):
            group.load()
            group.allocate()
            assert everything(group.step, plain.VOCAB).seen == alone


def test_hybrid_mixtures(tmp_path: Path) -> None:
    """Recurrent layers, whose states are saved and gone on from, and experts, whose columns are put together between two linears."""
    files = {"safetensors": str(hybrid.write_folder(HYBRID, hybrid.make(HYBRID), tmp_path / "hf"))}
    whole = seen(tmp_path, files, 1, recurrent=True)[0]
    assert len({hash for row in whole for hash in row[4].values()}) > 15
    assert seen(tmp_path, files, 2, recurrent=True)[0] == whole
