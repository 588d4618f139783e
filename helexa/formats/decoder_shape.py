"""The sizes of a decoder, from its checkpoint's metadata alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.fields import Fields

_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256.0,
    "tie_word_embeddings": True,
}
# What a config.json may leave out, by its `model_type`: the architecture's own defaults.
CONFIG_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {
        **_GEMMA,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {**_GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1000000.0},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen3": {"head_dim": 128},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2000000.0, "tie_word_embeddings": True},
}


def fields_of(file: Checkpoint) -> Fields:
    """The metadata of a checkpoint's language model. ModelFileError where it names no architecture."""
    if file.format == "gguf":
        return Fields(file, f"{file.get('general.architecture', str)}.")
    name = file.get("model_type", str).removesuffix("_text")
    return Fields(file, "text_config." if "text_config" in file.metadata else "", CONFIG_DEFAULTS.get(name, {}))


@dataclass(frozen=True)
class Shape:
    """`tied`: the head is the embedding."""

    layers: int
    width: int  # E
    hidden: int  # I, of a dense feed-forward; 0 where the file has none
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int  # tokens it was trained for
    eps: float  # of the norms
    tied: bool
    pooling: str = ""  # what a prompt's rows become where the model makes embeddings: `mean` or `last`; empty: it generates

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def of(cls, fields: Fields) -> Shape:
        """ModelFileError where the file does not say, or says what does not fit together."""
        shape = cls._from_gguf(fields) if fields.file.format == "gguf" else cls._from_hf(fields)
        if fields.file.format == "gguf":
            shape = replace(shape, pooling=pooling_of(fields))
        if shape.heads % shape.kv_heads:
            raise fields.error("head count", shape.heads, f"cannot share {shape.kv_heads} KV heads")
        return shape

    @classmethod
    def _from_gguf(cls, fields: Fields) -> Shape:
        file, width, heads = fields.file, fields.count("embedding_length"), fields.count("attention.head_count")
        head_dim = fields.count("attention.key_length", width // heads)
        value_dim = fields.count("attention.value_length", head_dim)
        if value_dim != head_dim:
            raise fields.error("attention.value_length", value_dim, f"differs from the key length {head_dim}; that is not served")
        return cls(
            layers=fields.count("block_count") - fields.get("nextn_predict_layers", int, 0),
            width=width,
            hidden=fields.get("feed_forward_length", int, 0),
            heads=heads,
            kv_heads=fields.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab=len(file.get("tokenizer.ggml.tokens", list)),
            context=fields.count("context_length"),
            eps=fields.get("attention.layer_norm_rms_epsilon", float, 1e-5),
            tied="output.weight" not in file.tensors,
        )

    @classmethod
    def _from_hf(cls, fields: Fields) -> Shape:
        width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        return cls(
            layers=fields.count("num_hidden_layers"),
            width=width,
            hidden=fields.get("intermediate_size", int, 0),
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_dim=fields.count("head_dim", width // heads),
            vocab=fields.count("vocab_size"),
            context=fields.count("max_position_embeddings"),
            eps=fields.get("rms_norm_eps", float, 1e-6),
            tied=fields.get("tie_word_embeddings", bool, False),
        )


def qwen_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Each layer's window by a Qwen config, 0 where it sees all: none unless `use_sliding_window`, else by `layer_types`, or from
    layer `max_window_layers` up."""
    if not fields.get("use_sliding_window", bool, False):
        return (0,) * layers
    listed = windows_of_layer_types(fields, layers)
    if listed is not None:
        return listed
    window, first = fields.get("sliding_window", int, 4096), fields.get("max_window_layers", int, 28)
    return tuple(window if layer >= first else 0 for layer in range(layers))


def windows_of_layer_types(fields: Fields, layers: int) -> tuple[int, ...] | None:
    """Each layer's window by `layer_types` of a config.json, 0 where it sees all; None where the file does not list them."""
    types = fields.get("layer_types", list, None)
    if types is None:
        return None
    unknown = sorted({str(item) for item in types} - {"full_attention", "sliding_attention"})
    if unknown or len(types) < layers:
        raise fields.error("layer_types", unknown or f"{len(types)} entries", f"is not served for {layers} layers")
    return tuple(fields.count("sliding_window") if item == "sliding_attention" else 0 for item in types[:layers])


_POOLING = {-1: "", 0: "", 1: "mean", 3: "last"}  # of the numbers that GGUF files use


def pooling_of(fields: Fields) -> str:
    """Of a GGUF; see Shape."""
    kind = fields.get("pooling_type", int, 0)
    if kind not in _POOLING:
        raise fields.error("pooling_type", kind, "is not served; 1 (mean) and 3 (last) are")
    return _POOLING[kind]
