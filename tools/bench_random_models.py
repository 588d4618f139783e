"""GGUF files of random weights, of every architecture family and tensor type that is served: for measuring speed, which does not
depend on the weights' values. See bench_families.py.

Sizes are near each other: 150 to 200 million weights, a model width of 1,024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from helexa.formats.ggml_types import BY_NAME, row_bytes

UInt8 = NDArray[np.uint8]

VOCAB, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 16384, 1024, 2816, 16, 4, 64, 4096
EXPERTS, EXPERTS_USED, EXPERT_HIDDEN = 16, 4, 512
DELTA_HEADS, DELTA_DIM, CONV_KERNEL = 16, 128, 4  # of Gated DeltaNet layers: as many key heads as value heads
# Where a block of a quantised type has its half-precision numbers.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")


@dataclass(frozen=True)
class Family:
    """`architecture` is a GGUF's; `facts` are its metadata beyond the common."""

    architecture: str
    layers: int
    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    tied: bool = False
    experts: bool = False
    hybrid: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


_MOE = {
    "expert_count": EXPERTS,
    "expert_used_count": EXPERTS_USED,
    "expert_feed_forward_length": EXPERT_HIDDEN,
}
_DELTA = {
    "ssm.conv_kernel": CONV_KERNEL,
    "ssm.state_size": DELTA_DIM,
    "ssm.group_count": DELTA_HEADS,
    "ssm.time_step_rank": DELTA_HEADS,
    "ssm.inner_size": DELTA_HEADS * DELTA_DIM,
    "full_attention_interval": 4,
    "rope.dimension_count": HEAD_DIM // 4,
}
FAMILIES = {
    "llama": Family("llama", 12),
    "qwen2": Family("qwen2", 12, biases=True),
    "qwen3": Family("qwen3", 12, head_norms=True),
    "qwen3_moe": Family("qwen3moe", 6, head_norms=True, experts=True, facts=_MOE),
    "qwen3_5": Family("qwen35", 8, hybrid=True, facts={**_DELTA, "rope.dimension_sections": [3, 3, 2, 0]}),
    "qwen3_next": Family(
        "qwen3next", 4, hybrid=True, experts=True, facts={**_MOE, **_DELTA, "expert_shared_feed_forward_length": EXPERT_HIDDEN}
    ),
    "gemma3": Family("gemma3", 12, head_norms=True, post_norms=True, tied=True, facts={"attention.sliding_window": 512}),
    "smollm3": Family("smollm3", 12),
}


def write(path: Path, family: Family, type: str, seed: int = 0) -> Path:
    """Matrices are of `type`, norms and what is small F32."""
    writer = gguf.GGUFWriter(path, family.architecture)
    for key, value in _facts(family).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[value.__class__]
        add(f"{family.architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    random, made = np.random.default_rng(seed), dict[tuple[str, tuple[int, ...]], UInt8]()
    for name, shape in tensors(family):
        if len(shape) == 1 or name.endswith("ssm_conv1d.weight"):
            writer.add_tensor(name, _small(name, shape, random))
            continue
        if (type, shape) not in made:  # layers have the same weights: that saves time, and is as fast to run
            made[type, shape] = random_blocks(type, shape, random)
        writer.add_tensor(name, made[type, shape], raw_dtype=gguf.GGMLQuantizationType[type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _facts(family: Family) -> dict[str, Any]:
    return {
        "block_count": family.layers,
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "rope.dimension_count": HEAD_DIM,
        **family.facts,
    }


def _small(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    values = 0.1 * random.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        values += 1
    elif name.endswith("ssm_a"):
        values -= 1
    return values


def random_blocks(type: str, shape: tuple[int, ...], random: np.random.Generator) -> UInt8:
    """(..., bytes of a row): random integers, with scales so small that activations stay tame."""
    *outer, columns = shape
    count = int(np.prod(shape)) // BY_NAME[type].block
    if type in HALVES:
        data = random.integers(0, 256, (count, BY_NAME[type].block_bytes), dtype=np.uint8)
        for place in HALVES[type]:
            scales = random.uniform(0.5, 1, count) * (0.004 if BY_NAME[type].block == 32 else 0.0002)
            data[:, place : place + 2] = scales.astype("<f2")[:, None].view(np.uint8)
    else:
        values = random.standard_normal(count, dtype=np.float32) * np.float32(0.02)
        whole = values.view(np.uint32) >> 16 if type == "BF16" else values
        data = whole.astype({"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[type]).view(np.uint8)
    return data.reshape(*outer, row_bytes(type, columns))


def tensors(family: Family) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, (rows, columns)."""
    yield "token_embd.weight", (VOCAB, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    if not family.tied:
        yield "output.weight", (VOCAB, WIDTH)
    for layer in range(family.layers):
        for name, shape in _layer(family, recurs=family.hybrid and (layer + 1) % 4 != 0):
            yield f"blk.{layer}.{name}", shape


def _layer(family: Family, recurs: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attn_norm.weight", (WIDTH,)
    yield from _delta(family) if recurs else _attention(family)
    yield "post_attention_norm.weight" if family.hybrid else "ffn_norm.weight", (WIDTH,)
    if family.post_norms:
        yield "post_attention_norm.weight", (WIDTH,)
        yield "post_ffw_norm.weight", (WIDTH,)
    if not family.experts:
        yield from _gated("", HIDDEN)
        return
    yield "ffn_gate_inp.weight", (EXPERTS, WIDTH)
    for name, shape in _gated("_exps", EXPERT_HIDDEN):
        yield name, (EXPERTS, *shape)
    if family.hybrid:
        yield "ffn_gate_inp_shexp.weight", (WIDTH,)
        yield from _gated("_shexp", EXPERT_HIDDEN)


def _attention(family: Family) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, both = HEADS * HEAD_DIM, 2 if family.hybrid else 1  # a hybrid's queries have gates beside them
    for name, rows in (("q", both * query), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
        yield f"attn_{name}.weight", (rows, WIDTH)
        if family.biases:
            yield f"attn_{name}.bias", (rows,)
    if family.head_norms or family.hybrid:
        yield "attn_q_norm.weight", (HEAD_DIM,)
        yield "attn_k_norm.weight", (HEAD_DIM,)
    yield "attn_output.weight", (WIDTH, query)


def _delta(family: Family) -> Iterator[tuple[str, tuple[int, ...]]]:
    inner = DELTA_HEADS * DELTA_DIM
    if family.architecture == "qwen3next":
        yield "ssm_ba.weight", (2 * DELTA_HEADS, WIDTH)
    else:
        yield "ssm_beta.weight", (DELTA_HEADS, WIDTH)
        yield "ssm_alpha.weight", (DELTA_HEADS, WIDTH)
    yield "attn_qkv.weight", (3 * inner, WIDTH)
    yield "attn_gate.weight", (inner, WIDTH)
    yield "ssm_conv1d.weight", (3 * inner, CONV_KERNEL)
    yield "ssm_dt.bias", (DELTA_HEADS,)
    yield "ssm_a", (DELTA_HEADS,)
    yield "ssm_norm.weight", (DELTA_DIM,)
    yield "ssm_out.weight", (WIDTH, inner)


def _gated(suffix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"ffn_gate{suffix}.weight", (hidden, WIDTH)
    yield f"ffn_up{suffix}.weight", (hidden, WIDTH)
    yield f"ffn_down{suffix}.weight", (WIDTH, hidden)
