"""The default model on the reference ops against `transformers`, an outside implementation, in float32."""

from __future__ import annotations

import pytest

from helexa.formats.gguf import GGUFFile
from helexa.text.tokenizer import Tokenizer
from ipc.messages import Plan, SamplingParams, SeatJoin
from workers.ops.reference import ReferenceOps
from workers.runner import Runner, next_plan

pytestmark = pytest.mark.model

TOKENS = 64
NEAR_TIE = 1e-3  # of the outside model's own two best logits: there either token is right

PROMPTS = [
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
    "My favourite season is autumn because",
    "import numpy as np\n\nx = np.",
    "The mitochondria is",
    "Dear Sir or Madam,\n",
    "Shakespeare wrote plays such as",
    "Q: What is 12 times 12?\nA:",
    "The largest ocean on Earth is",
    "<|im_start|>user\nName a fruit.<|im_end|>\n<|im_start|>assistant\n",
    "Photosynthesis is the process by which",
    "Musique et littérature: 日本語 and emoji 🙂 are",
]


@pytest.fixture(scope="module")
def greedy(default_model_path) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, output ids) of all prompts, run as one batch."""
    file = GGUFFile.open(default_model_path)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    runner = Runner(file, ReferenceOps(2), 512, [])
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    per_seat = 8
    runner.allocate(per_seat * len(prompts), len(prompts))
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    seats = list(range(len(prompts)))
    counts = [len(prompt) for prompt in prompts]
    plan = Plan(
        incarnation=1,
        step=1,
        repeat=1,
        leaves=[],
        joins=[SeatJoin(seat, 0, len(prompts[seat]), params) for seat in seats],
        seats=seats,
        starts=[0] * len(seats),
        counts=counts,
        carried=counts,
        samples=[True] * len(seats),
        ids=[token for prompt in prompts for token in prompt],
        block_seats=[seat for seat in seats for _ in range(per_seat)],
        blocks=list(range(per_seat * len(seats))),
    )
    outputs: list[list[int]] = [[] for _ in seats]
    for step in range(TOKENS):
        result = runner.step(plan, step, lambda: 0.0).result
        for seat, token in zip(result.seats, result.ids, strict=True):
            outputs[seat].append(token)
        plan = next_plan(plan)
    return list(zip(prompts, outputs, strict=True))


def test_greedy_ids_equal_those_of_transformers(greedy, default_model_path):
    """20 prompts x 64 tokens: each of ours is the outside model's best, but where its own best two are a near tie."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(default_model_path.parent), gguf_file=default_model_path.name, dtype=torch.float32
    )
    near_ties = 0
    for text, (prompt, output) in zip(PROMPTS, greedy, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        best = logits.topk(2, dim=-1)
        for position, token in enumerate(output):
            if int(best.indices[position, 0]) != token:
                gap = float(best.values[position, 0] - logits[position, token])
                assert gap <= NEAR_TIE, f"{text!r}, token {position}: {token} is {gap} below the outside model's best"
                near_ties += 1
    assert near_ties <= 5


def test_the_capital_of_france_is_paris(greedy, default_model_path):
    """A person's check that the model is the model."""
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(default_model_path).metadata)
    text = b"".join(tokenizer.token_bytes(token) for token in greedy[0][1]).decode(errors="replace")
    assert text.startswith(" Paris")
