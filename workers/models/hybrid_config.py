"""The sizes of a hybrid model, from a GGUF's metadata or a Hugging Face config.json."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint
from helexa.formats.recurrent_sizes import RecurrentSizes, recurrent_sizes, size_of
from workers.ops.protocol import RecurrentShape, Rope


@dataclass(frozen=True)
class HybridConfig:
    width: int
    hidden: int  # of a dense feed-forward; 0: none is
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    rope: Rope
    recurs: tuple[bool, ...]  # of each layer, else it attends
    recurrent: RecurrentShape
    experts: int  # 0: no mixture
    top_k: int
    normalise: bool
    expert_hidden: int
    shared_hidden: int
    mtp_layers: int

    @property
    def attention_layers(self) -> int:
        return self.recurs.count(False)


def from_gguf(file: Checkpoint, tiled: bool) -> HybridConfig:
    """`tiled`: see RecurrentShape. Raises ModelFileError."""
    name = file.get("general.architecture", str)

    def count(key: str, default: int | None = None) -> int:
        return size_of(file, f"{name}.{key}", default)

    sizes = _recurrent(file)
    head_dim = count("attention.key_length")
    hidden = file.get(f"{name}.feed_forward_length", int, 0)
    expert_hidden = file.get(f"{name}.expert_feed_forward_length", int, 0)
    return _checked(
        file,
        HybridConfig(
            width=count("embedding_length"),
            hidden=hidden,
            heads=count("attention.head_count"),
            kv_heads=count("attention.head_count_kv"),
            head_dim=head_dim,
            vocab=len(file.get("tokenizer.ggml.tokens", list)),
            context=count("context_length"),
            eps=file.get(f"{name}.attention.layer_norm_rms_epsilon", float, 1e-6),
            rope=_rope(
                file,
                file.get(f"{name}.rope.freq_base", float, 10000.0),
                file.get(f"{name}.rope.dimension_count", int, head_dim // 4),
                file.get(f"{name}.rope.scaling.type", str, "none"),
            ),
            recurs=sizes.recurs,
            recurrent=_shape(sizes, tiled),
            experts=file.get(f"{name}.expert_count", int, 0),
            top_k=file.get(f"{name}.expert_used_count", int, 0),
            normalise=True,
            expert_hidden=expert_hidden,
            shared_hidden=file.get(f"{name}.expert_shared_feed_forward_length", int, expert_hidden),
            mtp_layers=file.get(f"{name}.nextn_predict_layers", int, 0),
        ),
    )


def from_hugging_face(file: Checkpoint, mtp_layers: int) -> HybridConfig:
    """A config of a text model, or one that holds it under `text_config`. Raises ModelFileError."""
    prefix = "text_config." if file.get("text_config", dict, None) is not None else ""

    def count(key: str, default: int | None = None) -> int:
        return size_of(file, prefix + key, default)

    sizes, heads, width = _recurrent(file), count("num_attention_heads"), count("hidden_size")
    head_dim = count("head_dim", width // heads)
    for key, served in (("attention_bias", False), ("attn_output_gate", True), ("hidden_act", "silu")):
        value = file.get(prefix + key, type(served), served)
        if value != served:
            raise ModelFileError(f"{file.path}: {key} = {value} is not served in this architecture")
    rope = f"{prefix}rope_parameters." if file.get(f"{prefix}rope_parameters", dict, None) is not None else prefix
    rotary = file.get(f"{rope}partial_rotary_factor", float, file.get(f"{prefix}partial_rotary_factor", float, 0.25))
    scaling = file.get(f"{rope}rope_type", str, file.get(f"{prefix}rope_scaling.rope_type", str, "default"))
    return _checked(
        file,
        HybridConfig(
            width=width,
            hidden=file.get(f"{prefix}intermediate_size", int, 0),
            heads=heads,
            kv_heads=count("num_key_value_heads", heads),
            head_dim=head_dim,
            vocab=count("vocab_size"),
            context=count("max_position_embeddings"),
            eps=file.get(f"{prefix}rms_norm_eps", float, 1e-6),
            rope=_rope(
                file, file.get(f"{rope}rope_theta", float, 10000.0), int(head_dim * rotary), scaling.replace("default", "none")
            ),
            recurs=sizes.recurs,
            recurrent=_shape(sizes, tiled=False),
            experts=file.get(f"{prefix}num_experts", int, 0),
            top_k=file.get(f"{prefix}num_experts_per_tok", int, 0),
            normalise=file.get(f"{prefix}norm_topk_prob", bool, True),
            expert_hidden=file.get(f"{prefix}moe_intermediate_size", int, 0),
            shared_hidden=file.get(f"{prefix}shared_expert_intermediate_size", int, 0),
            mtp_layers=mtp_layers,
        ),
    )


def _recurrent(file: Checkpoint) -> RecurrentSizes:
    sizes = recurrent_sizes(file)
    if sizes is None:
        raise ModelFileError(f"{file.path}: it does not say how large its recurrent state is")
    return sizes


def _shape(sizes: RecurrentSizes, tiled: bool) -> RecurrentShape:
    heads = (sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    return RecurrentShape(sum(sizes.recurs), *heads, sizes.kernel, tiled)


def _rope(file: Checkpoint, base: float, rotary: int, scaling: str) -> Rope:
    """Su et al. 2021, over the first `rotary` columns of a head."""
    if scaling != "none":
        raise ModelFileError(f"{file.path}: rope scaling `{scaling}` is not served in this architecture")
    return Rope(base ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary), neox=True)


def _checked(file: Checkpoint, config: HybridConfig) -> HybridConfig:
    recurrent, rotary = config.recurrent, 2 * len(config.rope.inv_freq)
    for wrong, says in (
        (config.attention_layers == 0, "a hybrid model without an attention layer is not served"),
        (config.heads % config.kv_heads, f"{config.heads} heads cannot share {config.kv_heads} KV heads"),
        (
            recurrent.value_heads % recurrent.key_heads,
            f"{recurrent.value_heads} value heads cannot share {recurrent.key_heads} key heads",
        ),
        (recurrent.kernel < 2, f"a convolution of {recurrent.kernel} taps is not served"),
        (not 0 < rotary <= config.head_dim, f"{rotary} rotary columns do not fit heads of {config.head_dim}"),
        (config.mtp_layers > 1, f"an MTP head of {config.mtp_layers} layers is not served"),
        (
            config.experts and not 0 < config.top_k <= config.experts,
            f"{config.top_k} of {config.experts} experts cannot be chosen",
        ),
    ):
        if wrong:
            raise ModelFileError(f"{file.path}: {says}")
    return config
