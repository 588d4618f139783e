"""What is found out of a model before it is loaded: every reason not to serve one, and what is said when it can be."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_model import write_tiny_model
from vocabularies import byte_level_tokenizer, write_tokenizer

from helexa import config as configuration
from helexa.catalogue.memory_plan import PROCESS_BYTES
from helexa.catalogue.preflight import PreflightError, Wishes, check
from helexa.commands import preflight as command
from workers.models.registry import ARCHITECTURES

ROOM = 10**9
FolderWriter = Callable[..., Path]


def patched(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def tiny(folder: Path, **options: Any) -> Path:
    return write_tiny_model(folder / "tiny.gguf", **options)


def cut(folder: Path) -> Path:
    path = tiny(folder)
    path.write_bytes(path.read_bytes()[:-1000])
    return path


def typed(folder: Path, number: int) -> Path:
    """A GGUF whose first tensor is of another type."""
    writer = gguf.GGUFWriter(folder / "typed.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 256), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = folder / "typed.gguf"
    data = bytearray(path.read_bytes())
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    data[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(data)
    return path


def vocabulary_alone(folder: Path) -> Path:
    writer = gguf.GGUFWriter(folder / "vocab.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "vocab.gguf"


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(b"x" * (4 if name.endswith(".safetensors") else 100))
    return folder


def without(path: Path, name: str) -> Path:
    (path / name).unlink()
    return path


def with_config(path: Path, **changes: Any) -> Path:
    config = json.loads((path / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    return path


def with_tokenizer(path: Path, **changes: Any) -> Path:
    made = json.loads(byte_level_tokenizer().to_str())
    return write_tokenizer(path, made | {"model": made["model"] | changes})


RECURRENT = {
    "model_type": "qwen3_next",
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
CASES: list[tuple[str, str, Callable[[Path, FolderWriter], Path], Wishes, int]] = [
    ("format", "is not there", lambda t, w: t / "nothing.gguf", Wishes(), ROOM),
    ("format", "holds no .gguf and no .safetensors file", lambda t, w: t, Wishes(), ROOM),
    ("format", "holds only pickled weights", lambda t, w: folder_with(t, "pytorch_model.bin"), Wishes(), ROOM),
    ("format", "model.pt is pickled", lambda t, w: folder_with(t, "model.pt") / "model.pt", Wishes(), ROOM),
    ("format", "mixes GGUF and safetensors", lambda t, w: folder_with(t, "a.gguf", "model.safetensors"), Wishes(), ROOM),
    ("format", "holds 2 models (a.gguf, b.gguf)", lambda t, w: folder_with(t, "a.gguf", "b.gguf"), Wishes(), ROOM),
    ("file", "not a GGUF file", lambda t, w: folder_with(t, "bad.gguf") / "bad.gguf", Wishes(), ROOM),
    ("file", "end past the file's", lambda t, w: cut(t), Wishes(), ROOM),
    ("file", "type IQ2_XS is not served", lambda t, w: typed(t, 17), Wishes(), ROOM),
    ("file", "no tensors", lambda t, w: vocabulary_alone(t), Wishes(), ROOM),
    ("file", "config.json: missing", lambda t, w: without(w(t), "config.json"), Wishes(), ROOM),
    ("file", "not valid JSON", lambda t, w: folder_with(w(t), "config.json"), Wishes(), ROOM),
    ("file", "before its header", lambda t, w: folder_with(w(t), "model.safetensors"), Wishes(), ROOM),
    ("file", "quantised by `gptq`", lambda t, w: with_config(w(t), quantization_config={"quant_method": "gptq"}), Wishes(), ROOM),
    ("file", "num_hidden_layers", lambda t, w: with_config(w(t), num_hidden_layers=None), Wishes(), ROOM),
    ("file", "3 KV heads", lambda t, w: with_config(w(t), num_key_value_heads=3), Wishes(), ROOM),
    ("file", "model-00002-of-00002", lambda t, w: without(w(t, shards=2), "model-00002-of-00002.safetensors"), Wishes(), ROOM),
    ("architecture", "'lamma' is not served", lambda t, w: with_config(w(t), model_type="lamma"), Wishes(), ROOM),
    ("architecture", "'bert!' is not served", lambda t, w: patched(tiny(t), b"llama", b"bert!"), Wishes(), ROOM),
    ("architecture", "model_type is missing", lambda t, w: with_config(w(t), model_type=None), Wishes(), ROOM),
    ("tokenizer", "'smollx', which is not served", lambda t, w: patched(tiny(t), b"smollm", b"smollx"), Wishes(), ROOM),
    ("tokenizer", "'bert', which is not served", lambda t, w: patched(tiny(t), b"gpt2", b"bert"), Wishes(), ROOM),
    ("tokenizer", "tokenizer.json: missing", lambda t, w: without(w(t), "tokenizer.json"), Wishes(), ROOM),
    ("tokenizer", "'WordPiece', which is not served", lambda t, w: with_tokenizer(w(t), type="WordPiece"), Wishes(), ROOM),
    ("tokenizer", "not valid JSON", lambda t, w: folder_with(w(t), "tokenizer_config.json"), Wishes(), ROOM),
    ("quant", "cannot be quantised to 'q4_9'", lambda t, w: tiny(t), Wishes(quant="q4_9"), ROOM),
    ("quant", "quantised already", lambda t, w: tiny(t, quant="Q8_0"), Wishes(quant="q4_0"), ROOM),
    ("tensor_parallel", "2 KV heads cannot be split over 3 ranks", lambda t, w: tiny(t), Wishes(ranks=3), ROOM),
    ("tensor_parallel", "1 key heads of recurrent", lambda t, w: with_config(w(t), **RECURRENT), Wishes(ranks=2), ROOM),
    ("context", "trained for 512 tokens", lambda t, w: tiny(t), Wishes(context=513), ROOM),
    ("memory", "of weights", lambda t, w: tiny(t), Wishes(), 60 * 2**20),
    ("memory", "may be used", lambda t, w: tiny(t, quant="Q8_0"), Wishes(kv_blocks=10**6), ROOM),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{kind}-{expected[:24]}" for kind, expected, *_ in CASES])
def test_refusals(case: tuple[Any, ...], tmp_path: Path, write_folder: FolderWriter) -> None:
    """Each is a kind, the model's name, one line that says what is wrong, and a suggestion."""
    kind, expected, make, wishes, room = case
    with pytest.raises(PreflightError) as caught:
        check("the model", make(tmp_path, write_folder), wishes, room, ARCHITECTURES)
    error = caught.value
    assert (error.kind, error.model_id) == (kind, "the model")
    assert expected in error.problem and "\n" not in error.message and len(error.suggestion) > 10 and ";" not in error.suggestion
    assert error.document() == {"kind": kind, "model_id": "the model", "problem": error.problem, "suggestion": error.suggestion}


def test_suggestions(tmp_path: Path, write_folder: FolderWriter) -> None:
    """The nearest name, and what would make room."""
    with pytest.raises(PreflightError) as caught:
        check("m", with_config(write_folder(tmp_path / "a"), model_type="lamma"), Wishes(), ROOM, ARCHITECTURES)
    assert caught.value.suggestion.endswith("the nearest that is served is llama")
    path = tiny(tmp_path)
    with pytest.raises(PreflightError) as caught:
        check("m", path, Wishes(quant="q40"), ROOM, ARCHITECTURES)
    assert caught.value.suggestion == "did you mean q4_0?"
    with pytest.raises(PreflightError) as caught:
        check("m", path, Wishes(ranks=3), ROOM, ARCHITECTURES)
    assert caught.value.suggestion == "set devices.tensor_parallel (--tensor-parallel) to at most 2"
    with pytest.raises(PreflightError) as caught:
        check("m", path, Wishes(), 1000, ARCHITECTURES)
    assert 'set quant (such as "q4_0")' in caught.value.suggestion


def test_what_passes(tmp_path: Path, write_folder: FolderWriter) -> None:
    """Both formats; quantising at load, and ops that keep float32, count in the memory."""
    plain = check("m", tiny(tmp_path), Wishes(), ROOM, ARCHITECTURES)
    assert (plain.format, plain.architecture, plain.tokenizer, plain.context) == ("gguf", "llama", "byte-level BPE, smollm", 512)
    assert plain.weight_bytes == 4 * plain.parameters and plain.needed_bytes > plain.weight_bytes
    quantised = check("m", tmp_path / "tiny.gguf", Wishes(quant="q8_0"), ROOM, ARCHITECTURES)
    assert quantised.weight_bytes < plain.weight_bytes
    small = check("m", tmp_path / "tiny.gguf", Wishes(context=64), ROOM, ARCHITECTURES)
    assert small.needed_bytes < plain.needed_bytes and small.context == 64
    split = check("m", tmp_path / "tiny.gguf", Wishes(ranks=2), ROOM, ARCHITECTURES)
    assert split.needed_bytes == plain.needed_bytes + PROCESS_BYTES and split.weight_bytes == plain.weight_bytes
    packed = tiny(tmp_path, quant="Q8_0")
    floats = check("m", packed, Wishes(float_weights=True), ROOM, ARCHITECTURES)
    assert floats.weight_bytes == plain.weight_bytes > check("m", packed, Wishes(), ROOM, ARCHITECTURES).weight_bytes
    folder = check("m", write_folder(tmp_path / "folder"), Wishes(), ROOM, ARCHITECTURES)
    assert (folder.format, folder.tokenizer, folder.context) == ("safetensors", "tokenizer.json", 128)


def output(config: configuration.Config, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    code = command.preflight(config, out, io.StringIO(), **options)
    return code, out.getvalue()


def test_the_command(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """What people see: a model that can be served, and two that cannot; the exit code says which."""
    path = tiny(tmp_path)

    def configured(**flags: Any) -> configuration.Config:
        known = {"model.source": str(path), "memory.limit_mib": 128}
        return configuration.load(None, known | flags, {"TMPDIR": str(tmp_path)})

    texts = []
    for wanted, flags in ((0, {}), (1, {"model.context": 4096}), (1, {"memory.limit_mib": 64, "memory.kv_blocks": 100_000})):
        code, text = output(configured(**flags))
        assert code == wanted
        texts.append(text.replace(str(tmp_path), "/models"))
    golden("preflight.txt", "\n".join(texts))
    code, text = output(configured(), as_json=True)
    assert code == 0 and json.loads(text)["ok"] is True and json.loads(text)["context"] == 512
    code, text = output(configured(), as_json=True, ranks=5)
    assert code == 1 and output(configured(**{"devices.tensor_parallel": 5}), as_json=True) == (code, text)
    document = json.loads(text)
    assert (document["ok"], document["kind"], document["model_id"]) == (False, "tensor_parallel", str(path))
