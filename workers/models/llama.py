"""The llama architecture: Llama 2 and 3, Mistral, SmolLM2. Touvron et al. 2023; Grouped-query attention by Ainslie et al. 2023.

A GGUF of this architecture stores query and key rows so that rotary pairs are neighbours (2 i, 2 i + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import dequantise
from helexa.formats.gguf import GGUFFile
from workers.ops.protocol import Matrix, Ops, Rope, Value, Vector
from workers.weights.tensors import Tensors


@dataclass(frozen=True)
class Layer:
    attention_norm: Vector
    qkv: Matrix
    attention_output: Matrix
    ffn_norm: Vector
    gate_up: Matrix
    down: Matrix


@dataclass
class Llama:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    rope: Rope
    embedding: Matrix
    blocks: list[Layer]
    norm: Vector
    head: Matrix

    @classmethod
    def load(cls, file: GGUFFile, tensors: Tensors, ops: Ops) -> Llama:
        layers = _count(file, "llama.block_count")
        width = _count(file, "llama.embedding_length")
        hidden = _count(file, "llama.feed_forward_length")
        heads = _count(file, "llama.attention.head_count")
        kv_heads = file.get("llama.attention.head_count_kv", int, heads)
        head_dim = file.get("llama.attention.key_length", int, width // heads)
        if kv_heads < 1 or heads % kv_heads:
            raise ModelFileError(f"{file.path}: {heads} heads cannot share {kv_heads} KV heads")
        if file.get("llama.attention.value_length", int, head_dim) != head_dim:
            raise ModelFileError(f"{file.path}: llama.attention.value_length differs from the key length; that is not served")
        vocab = len(file.get("tokenizer.ggml.tokens", list))
        embedding = ops.matrix([tensors.take("token_embd.weight", (vocab, width))])
        tied = "output.weight" not in tensors
        return cls(
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=vocab,
            context=_count(file, "llama.context_length"),
            eps=file.get("llama.attention.layer_norm_rms_epsilon", float, 1e-5),
            rope=_rope(file, tensors, head_dim),
            embedding=embedding,
            blocks=[_layer(index, tensors, ops, width, hidden, heads * head_dim, kv_heads * head_dim) for index in range(layers)],
            norm=ops.vector(tensors.take("output_norm.weight", (width,))),
            head=embedding if tied else ops.matrix([tensors.take("output.weight", (vocab, width))]),
        )

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.embedding)
        for index, layer in enumerate(self.blocks):
            qkv = ops.linear(ops.rms_norm(x, layer.attention_norm, self.eps), layer.qkv)
            q = ops.rope_kv_write(qkv, index, self.heads, self.kv_heads, self.head_dim, self.rope)
            attended = ops.attention(q, index, self.heads, self.kv_heads, self.head_dim)
            x = ops.add(x, ops.linear(attended, layer.attention_output))
            gate_up = ops.linear(ops.rms_norm(x, layer.ffn_norm, self.eps), layer.gate_up)
            x = ops.add(x, ops.linear(ops.silu_mul(gate_up), layer.down))
        return ops.linear(ops.rms_norm(ops.gather_logit_rows(x), self.norm, self.eps), self.head)


def _layer(index: int, tensors: Tensors, ops: Ops, width: int, hidden: int, q_width: int, kv_width: int) -> Layer:
    def take(name: str, *shape: int) -> Matrix:
        return ops.matrix([tensors.take(f"blk.{index}.{part}.weight", shape) for part in name.split("+")])

    prefix = f"blk.{index}."
    return Layer(
        attention_norm=ops.vector(tensors.take(f"{prefix}attn_norm.weight", (width,))),
        qkv=ops.matrix(
            [
                tensors.take(f"{prefix}attn_q.weight", (q_width, width)),
                tensors.take(f"{prefix}attn_k.weight", (kv_width, width)),
                tensors.take(f"{prefix}attn_v.weight", (kv_width, width)),
            ]
        ),
        attention_output=take("attn_output", width, q_width),
        ffn_norm=ops.vector(tensors.take(f"{prefix}ffn_norm.weight", (width,))),
        gate_up=take("ffn_gate+ffn_up", hidden, width),
        down=take("ffn_down", width, hidden),
    )


def _rope(file: GGUFFile, tensors: Tensors, head_dim: int) -> Rope:
    """Su et al. 2021; Llama 3's long-context factors come as a tensor that divides the frequencies."""
    rotary = file.get("llama.rope.dimension_count", int, head_dim)
    scaling = file.get("llama.rope.scaling.type", str, "none")
    if scaling != "none":
        raise ModelFileError(f"{file.path}: rope scaling `{scaling}` is not served")
    if rotary % 2 or not 0 < rotary <= head_dim:
        raise ModelFileError(f"{file.path}: llama.rope.dimension_count {rotary} does not fit heads of {head_dim}")
    base = file.get("llama.rope.freq_base", float, 10000.0)
    inv_freq = base ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    if "rope_freqs.weight" in tensors:
        factors = tensors.take("rope_freqs.weight", (rotary // 2,))
        inv_freq = inv_freq / dequantise(factors.type, factors.data, rotary // 2).reshape(-1)
    return Rope(inv_freq, neox=False)


def _count(file: GGUFFile, key: str) -> int:
    value = file.get(key, int)
    if not 0 < value < 2**24:
        raise ModelFileError(f"{file.path}: {key} = {value} is not a size")
    return value
