"""Tiny random hybrid models made by `transformers`, with a head for multi-token prediction: as a Hugging Face folder, and the same
weights as the GGUF that converters write of them (norm weights plus 1, decays in place of their logarithms, rows by kind, and, in
qwen35, the value heads of all key heads in turn)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

VOCAB = 97
WIDTH = 64
Float32 = NDArray[np.float32]
State = dict[str, Float32]

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """`hf` begins the names of the `transformers` classes; `gguf` is the architecture of a GGUF. `nested`: the folder is of a model
    that sees images too, whose text model lies beside a vision tower."""

    name: str
    hf: str
    gguf: str
    config: dict[str, Any]
    nested: bool = False

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("next", "Qwen3Next", "qwen3next", {"num_experts": 0}),
    Case("next-moe", "Qwen3Next", "qwen3next", {**MOE, "linear_num_value_heads": 6}),
    Case(
        "next-mixed",
        "Qwen3Next",
        "qwen3next",
        {**MOE, "mlp_only_layers": [1], "layer_types": [FULL, LINEAR, LINEAR, FULL, LINEAR], "num_hidden_layers": 5},
    ),
    Case("35", "Qwen3_5", "qwen35", {}),
    Case(
        "35-nested",
        "Qwen3_5",
        "qwen35",
        {
            "layer_types": [LINEAR, FULL, LINEAR],
            "num_hidden_layers": 3,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 10,
            "linear_conv_kernel_dim": 3,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
        nested=True,
    ),
    Case("35-moe", "Qwen3_5Moe", "qwen35moe", {**MOE, "norm_topk_prob": True}),
]


@dataclass
class Outside:
    """The `transformers` model, and the head, of modules of its own."""

    model: Any
    mtp: Any

    def logits(self, ids: list[int], half: bool = False) -> Float32:
        """(len(ids), V), all at once. `half`: keys and values rounded to float16."""
        import torch
        from transformers import DynamicCache

        class HalfCache(DynamicCache):  # type: ignore[misc]
            def update(self, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:
                return super().update(keys.half().float(), values.half().float(), *rest, **more)

        with torch.inference_mode():
            cache = {"past_key_values": HalfCache(config=self.model.config)} if half else {"use_cache": False}
            result: Float32 = self.model(torch.tensor([ids]), **cache).logits[0].numpy()
        return result

    def hidden(self, ids: list[int]) -> Float32:
        """(len(ids), width): behind the last norm."""
        import torch

        with torch.inference_mode():
            result: Float32 = self.model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()
        return result

    def mtp_logits(self, hidden: Float32, next_ids: list[int]) -> Float32:
        """(n, V): the token after each of `next_ids`."""
        import torch

        text = self.model.model
        with torch.inference_mode():
            positions = torch.arange(len(next_ids))[None]
            parts = [self.mtp["pre_fc_norm_embedding"](text.embed_tokens(torch.tensor([next_ids])))]
            parts.append(self.mtp["pre_fc_norm_hidden"](torch.from_numpy(hidden)[None]))
            x = self.mtp["fc"](torch.cat(parts, dim=-1))
            rotary = positions if self.model.config.model_type == "qwen3_next" else positions[None].expand(3, -1, -1)
            mask = torch.full((len(next_ids),) * 2, float("-inf")).triu(1)[None, None]
            x = self.mtp["layers"][0](x, text.rotary_emb(x, rotary), attention_mask=mask)
            result: Float32 = self.model.lm_head(self.mtp["norm"](x))[0].numpy()
        return result

    def state(self) -> State:
        state = {name: weight.detach().numpy() for name, weight in self.model.state_dict().items()}
        if self.model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        return state | {f"mtp.{name}": weight.detach().numpy() for name, weight in self.mtp.state_dict().items()}


def make(case: Case, seed: int = 0) -> Outside:
    """In float32, with weights large enough that every part shows in the logits."""
    import importlib

    import torch
    import transformers

    torch.set_num_threads(1)  # tiny products: threads that wait for each other cost more than they do
    text = "" if case.hf == "Qwen3Next" else "Text"
    config = getattr(transformers, f"{case.hf}{text}Config")(**{**SIZES, **case.config})
    model = getattr(transformers, f"{case.hf}ForCausalLM")._from_config(config, attn_implementation="eager", dtype=torch.float32)
    module = importlib.import_module(type(model).__module__)
    norm = getattr(module, f"{case.hf}RMSNorm")
    mtp = torch.nn.ModuleDict(
        {
            "fc": torch.nn.Linear(2 * WIDTH, WIDTH, bias=False),
            "layers": torch.nn.ModuleList(
                [
                    getattr(module, f"{case.hf}DecoderLayer")(config, config.layer_types.index(FULL))
                    if FULL in config.layer_types
                    else None
                ]
            ),
            "norm": norm(WIDTH, eps=config.rms_norm_eps),
            "pre_fc_norm_embedding": norm(WIDTH, eps=config.rms_norm_eps),
            "pre_fc_norm_hidden": norm(WIDTH, eps=config.rms_norm_eps),
        }
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*sorted(model.named_parameters()), *sorted(mtp.named_parameters())]:
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("linear_attn.norm.weight"):
                weight.copy_(0.2 * noise + 1)
            elif "norm" in name:
                weight.copy_(0.2 * noise)
            elif "embed" in name:
                weight.copy_((0.15 if config.tie_word_embeddings else 0.3) * noise)
            elif weight.ndim == 1:
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(0.8 * noise / weight.shape[-1] ** 0.5)
    return Outside(model.eval(), mtp.eval())


def write_folder(case: Case, outside: Outside, folder: Path) -> Path:
    """The Hugging Face folder, with the head; experts in one tensor where the model is `nested` or of Qwen3.5, else one by one."""
    from safetensors.numpy import load_file, save_file

    outside.model.save_pretrained(folder)
    state = {name: values for name, values in outside.state().items() if name.startswith("mtp.")}
    state |= load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if case.nested:
        state = {
            name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: v
            for name, v in state.items()
        }
        state["model.visual.patch_embed.proj.weight"] = np.zeros((4, 4), np.float32)
        config = {"model_type": "qwen3_5", "text_config": config, "vision_config": {"depth": 1}}
        (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(values) for name, values in state.items()}, folder / "model.safetensors")
    return folder


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head_norm": "nextn.shared_head_norm",
}
MTP_NAMES = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(case: Case, outside: Outside, path: Path) -> Path:
    config = outside.model.config
    writer = gguf.GGUFWriter(str(path), case.gguf)
    writer.add_block_count(config.num_hidden_layers + 1)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(config.intermediate_size if hasattr(config, "intermediate_size") else 80)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim // 4)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    writer.add_uint32(f"{case.gguf}.nextn_predict_layers", 1)
    if "layer_types" in case.config:
        kinds = [*(kind == LINEAR for kind in config.layer_types), False]
        writer.add_array(f"{case.gguf}.attention.recurrent_layers", kinds)
    else:
        writer.add_uint32(f"{case.gguf}.full_attention_interval", 4)
    if getattr(config, "num_experts", 0):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    for name, values in converted(case, outside.state(), config).items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(case: Case, state: State, config: Any) -> State:
    """Tensors by their names in a GGUF."""
    result: State = {}
    for name, values in state.items():
        stem, kind = name.rsplit(".", 1)
        if stem in OTHERS:
            result[f"{OTHERS[stem]}.{kind}"] = values + 1 if stem == "model.norm" else values
            continue
        if name.startswith("mtp."):
            rest = name.removeprefix("mtp.").removeprefix("layers.0.")
            first, _, more = rest.partition(".")
            prefix, role = f"blk.{config.num_hidden_layers}.", MTP_NAMES[first] + "." + more if first in MTP_NAMES else rest
        else:
            number, role = name.removeprefix("model.layers.").split(".", 1)
            prefix = f"blk.{number}."
        for target, converted_values in _layer_tensors(case, role, values, config).items():
            result[prefix + target] = converted_values
    return result


def _layer_tensors(case: Case, role: str, values: Float32, config: Any) -> State:
    if role == "mlp.experts.gate_up_proj":
        if case.gguf == "qwen35moe":
            return {"ffn_gate_up_exps.weight": values}
        gate, up = np.split(values, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if role == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": values}
    if "linear_attn" in role and case.gguf.startswith("qwen35"):
        values = _in_turn(role, values, config)
    if role == "linear_attn.A_log":
        return {"ssm_a": -np.exp(values)}
    if role == "linear_attn.dt_bias":
        return {"ssm_dt.bias": values}
    if role == "linear_attn.in_proj_qkvz.weight":
        return _by_kind(values, config)
    stem, kind = role.rsplit(".", 1)
    if stem.endswith("norm") and stem != "linear_attn.norm":
        values = values + 1
    if stem == "linear_attn.conv1d":
        values = values[:, 0]
    if stem == "mlp.shared_expert_gate":
        values = values[0]
    return {f"{NAMES[stem]}.{kind}": values}


def _by_kind(values: Float32, config: Any) -> State:
    """Rows of queries, keys and values, and of gates, from rows of all four a key head."""
    share = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    sizes = [config.linear_key_head_dim, config.linear_key_head_dim, share, share]
    parts = np.split(values.reshape(config.linear_num_key_heads, -1, values.shape[-1]), np.cumsum(sizes)[:-1], axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in parts)
    return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}


def _in_turn(role: str, values: Float32, config: Any) -> Float32:
    """The value heads from those of a key head together to those of all key heads in turn."""
    heads, dim = config.linear_num_value_heads, config.linear_value_head_dim
    order = np.arange(heads).reshape(config.linear_num_key_heads, -1).T.reshape(-1)
    columns = (order[:, None] * dim + np.arange(dim)).reshape(-1)
    keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if role.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([values[:keys], values[keys:][columns]])
    if role.endswith("in_proj_z.weight"):
        return values[columns]
    if role.endswith("out_proj.weight"):
        return values[:, columns]
    return values[order] if role.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")) else values
