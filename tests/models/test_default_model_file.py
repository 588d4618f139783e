"""The default model's file as others read it: tensors, tokenizer, chat template."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from helexa.formats import ggml_types
from helexa.formats.gguf import GGUFFile
from helexa.text.chat_template import ChatTemplate
from helexa.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model


def test_default_model_equals_the_gguf_package(default_model_path: Path) -> None:
    """Every key and tensor of the default model, against the format's own reader."""
    reference = gguf.GGUFReader(default_model_path)
    with GGUFFile.open(default_model_path) as file:
        assert len(file.metadata) == sum(1 for name in reference.fields if not name.startswith("GGUF."))
        for name, value in file.metadata.items():
            expected = reference.fields[name].contents()
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, name
        assert len(file.tensors) == len(reference.tensors)
        for tensor in reference.tensors:
            info = file.tensors[tensor.name]
            assert info.type == tensor.tensor_type.name
            assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
            assert info.offset == tensor.data_offset and info.nbytes == tensor.n_bytes
        assert file.data("blk.29.ffn_down.weight").tobytes() == next(
            t.data.tobytes() for t in reference.tensors if t.name == "blk.29.ffn_down.weight"
        )


def test_default_model_tensors(default_model_path: Path) -> None:
    """Tensors of each type in the default model, bit for bit."""
    wanted = {"token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"}
    with GGUFFile.open(default_model_path) as file:
        for tensor in gguf.GGUFReader(default_model_path).tensors:
            if tensor.name in wanted:
                info = file.tensors[tensor.name]
                ours = ggml_types.dequantise(info.type, file.data(tensor.name), info.shape[-1])
                theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
                assert ours.tobytes() == np.ascontiguousarray(theirs, np.float32).tobytes(), tensor.name


def test_default_models_template(default_model_path: Path) -> None:
    """SmolLM2's own template gives the prompt its makers document."""
    with GGUFFile.open(default_model_path) as file:
        template = ChatTemplate(file.get("tokenizer.chat_template", str), "<|im_start|>", "<|im_end|>")
    assert template.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def random_text(rng: random.Random) -> str:
    """Letters, blanks, digits of all scripts, and characters from all planes."""
    makers = [
        lambda: chr(rng.randrange(32, 127)),
        lambda: rng.choice([" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000"]),
        lambda: rng.choice("0123456789²½٣९"),
        lambda: chr(rng.randrange(0xA0, 0xD800)),
        lambda: chr(rng.randrange(0x10000, 0x40000)),
        lambda: rng.choice(["the ", " and", "I'm", "<|im_end|>", "<|im_start|>", "n't", "é", "👩‍👩‍👧"]),
    ]
    return "".join(rng.choice(makers)() for _ in range(rng.randrange(40)))


def test_default_model_round_trip(default_model_path: Path) -> None:
    """Bytes of random Unicode text come back, control tokens in it as text; six characters the vocabulary lacks are left out."""
    with GGUFFile.open(default_model_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, str(default_model_path))
    assert (tokenizer.vocab, tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids, tokenizer.add_bos) == (
        49152,
        1,
        2,
        [0, 2],
        False,
    )
    rng = random.Random(5)
    for _ in range(2000):
        text = random_text(rng)
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, special=False))) == text.encode()
    lacking = [byte for byte in range(128) if not tokenizer.encode(chr(byte))]
    assert lacking == [4, 6, 19, 20, 22, 29]


def test_default_model_equals_transformers(default_model_path: Path) -> None:
    """Ids equal those of the `transformers` tokenizer loaded from the same GGUF.

    Its GGUF loader leaves out the file's pre-tokenizer (digits alone), so that is put back; on plain English it changes nothing.
    """
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(default_model_path.parent), gguf_file=default_model_path.name)
    with GGUFFile.open(default_model_path) as file:
        ours = Tokenizer.from_gguf(file.metadata)
    for text in ["The quick brown fox's 7 days, isn't it?", "def f(x):\n    return x\n", "<|im_start|>user\nHi<|im_end|>\n", ""]:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    digits_alone = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(digits_alone)
    rng = random.Random(6)
    for _ in range(3000):
        text = random_text(rng)
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    for id in range(ours.vocab):
        if id not in ours.control_ids:
            assert ours.token_text(id) == theirs.decode([id], clean_up_tokenization_spaces=False)
