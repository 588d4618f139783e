"""What the weights of a hybrid model are called in a GGUF and in a Hugging Face file, by role."""

from __future__ import annotations

from dataclasses import dataclass

GGUF_PARTS = {
    "mixer_norm": "attn_norm.weight",
    "ffn_norm": "post_attention_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attention_output": "attn_output.weight",
    "mixed": "attn_qkv.weight",
    "gate": "attn_gate.weight",
    "mixed_and_gate": "ssm_in.weight",
    "ba": "ssm_ba.weight",
    "b": "ssm_beta.weight",
    "a": "ssm_alpha.weight",
    "taps": "ssm_conv1d.weight",
    "decay": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "delta_norm": "ssm_norm.weight",
    "delta_output": "ssm_out.weight",
    "ffn_gate": "ffn_gate.weight",
    "ffn_up": "ffn_up.weight",
    "ffn_down": "ffn_down.weight",
    "router": "ffn_gate_inp.weight",
    "experts_gate": "ffn_gate_exps.weight",
    "experts_up": "ffn_up_exps.weight",
    "experts_gate_up": "ffn_gate_up_exps.weight",
    "experts_down": "ffn_down_exps.weight",
    "shared_ffn_gate": "ffn_gate_shexp.weight",
    "shared_ffn_up": "ffn_up_shexp.weight",
    "shared_ffn_down": "ffn_down_shexp.weight",
    "shared_gate": "ffn_gate_inp_shexp.weight",
}
HUGGING_FACE_PARTS = {
    "mixer_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attention_output": "self_attn.o_proj.weight",
    "mixed": "linear_attn.in_proj_qkv.weight",
    "gate": "linear_attn.in_proj_z.weight",
    "mixed_and_gate": "linear_attn.in_proj_qkvz.weight",
    "ba": "linear_attn.in_proj_ba.weight",
    "b": "linear_attn.in_proj_b.weight",
    "a": "linear_attn.in_proj_a.weight",
    "taps": "linear_attn.conv1d.weight",
    "decay": "linear_attn.A_log",
    "dt_bias": "linear_attn.dt_bias",
    "delta_norm": "linear_attn.norm.weight",
    "delta_output": "linear_attn.out_proj.weight",
    "ffn_gate": "mlp.gate_proj.weight",
    "ffn_up": "mlp.up_proj.weight",
    "ffn_down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "experts_gate": "mlp.experts.{}.gate_proj.weight",
    "experts_up": "mlp.experts.{}.up_proj.weight",
    "experts_gate_up": "mlp.experts.gate_up_proj",
    "experts_down": "mlp.experts.{}.down_proj.weight",
    "experts_down_together": "mlp.experts.down_proj",
    "shared_ffn_gate": "mlp.shared_expert.gate_proj.weight",
    "shared_ffn_up": "mlp.shared_expert.up_proj.weight",
    "shared_ffn_down": "mlp.shared_expert.down_proj.weight",
    "shared_gate": "mlp.shared_expert_gate.weight",
}


@dataclass(frozen=True)
class MtpNames:
    """Of the head for multi-token prediction. `fc` holds the linear of the embedding and that of the hidden, side by side."""

    layer: str
    fc: str
    embedding_norm: str
    hidden_norm: str
    norm: str


@dataclass(frozen=True)
class Names:
    """`layer` is a layer's prefix, with its number in braces. A GGUF holds what its converter made of some tensors (`converted`):
    norms as their weights, where Hugging Face has them less 1; -exp(A_log) in place of A_log; no dimension of 1."""

    parts: dict[str, str]
    embedding: str
    norm: str
    head: str
    layer: str
    mtp: MtpNames
    converted: bool


def gguf_names(layers: int) -> Names:
    prefix = f"blk.{layers}."
    nextn = f"{prefix}nextn."
    return Names(
        parts=GGUF_PARTS,
        embedding="token_embd.weight",
        norm="output_norm.weight",
        head="output.weight",
        layer="blk.{}.",
        mtp=MtpNames(
            prefix,
            f"{nextn}eh_proj.weight",
            f"{nextn}enorm.weight",
            f"{nextn}hnorm.weight",
            f"{nextn}shared_head_norm.weight",
        ),
        converted=True,
    )


def hugging_face_names(model: str) -> Names:
    """`model`: what the names of the text model begin with."""
    return Names(
        parts=HUGGING_FACE_PARTS,
        embedding=f"{model}embed_tokens.weight",
        norm=f"{model}norm.weight",
        head="lm_head.weight",
        layer=f"{model}layers.{{}}.",
        mtp=MtpNames(
            "mtp.layers.0.",
            "mtp.fc.weight",
            "mtp.pre_fc_norm_embedding.weight",
            "mtp.pre_fc_norm_hidden.weight",
            "mtp.norm.weight",
        ),
        converted=False,
    )
