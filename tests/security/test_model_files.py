"""What comes with a model is data: its code is not run, its template is caged, its numbers are not believed."""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path

import jinja2
import pytest
from service import free_port, helexa, launch
from transcripts import bodies, stream

from helexa.errors import ModelFileError, RequestError
from helexa.formats.checkpoint import open_checkpoint
from helexa.formats.gguf import GGUFFile
from helexa.text.chat_template import ChatTemplate
from tools.fuzz_model_files import TARGETS, fuzz, write_index, write_safetensors

EVIL = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def hostile_model(folder: Path) -> Path:
    """A folder as other loaders have run it: code, an auto_map that names it, pickled weights."""
    folder.mkdir()
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "__init__.py", "conftest.py"):
        (folder / name).write_text(EVIL)
    (folder / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["Evil"], "auto_map": {"AutoConfig": "configuration_evil.Evil", '
        '"AutoModelForCausalLM": "modeling_evil.Evil"}, "trust_remote_code": true, "_attn_implementation_internal": "evil/x"}'
    )
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "tokenizer.model"):
        (folder / name).write_bytes(pickle.dumps(Bomb(folder / f"{name}.ran")))
    return folder


@pytest.mark.process
@pytest.mark.parametrize("optimised", ["", "1"], ids=["plain", "python-O"])
def test_a_model_folder_with_code_and_pickles_is_refused(tmp_path, optimised):
    """Neither the folder nor any of its files can be served, and nothing of it runs."""
    folder = hostile_model(tmp_path / "evil")
    for model in (folder, folder / "pytorch_model.bin", folder / "modeling_evil.py"):
        service = launch(
            tmp_path, port := free_port(), helexa("serve", f"file:{model}", "--port", str(port)), PYTHONOPTIMIZE=optimised
        )
        assert service.wait() == 1
        service.wait_for("helexa: ")
        assert not any("Traceback" in line for line in service.report)
    assert not list(folder.rglob("*.ran")) and not list(folder.rglob("__pycache__"))


@pytest.mark.process
def test_code_beside_a_good_model_does_not_run(tmp_path, tiny_model_path):
    """The folder's one .gguf is served; the rest of it is not looked at."""
    folder = hostile_model(tmp_path / "evil")
    (folder / "model.gguf").write_bytes(tiny_model_path.read_bytes())
    service = launch(tmp_path, port := free_port(), helexa("serve", f"file:{folder}", "--port", str(port), "--name", "tiny"))
    service.wait_for(" ready ")
    service.wait_until_web_knows()
    assert stream(port, bodies(1, tokens=2)[0]).whole
    assert service.stop() == 0
    assert not list(folder.rglob("*.ran")) and not list(folder.rglob("__pycache__"))


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ ('%s'|attr('format'))('x') }}{{ ('{0.__class__}'|attr('format'))(1) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ cycler.__init__.__globals__.os.popen('touch ran').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ messages.__class__ }}",
    "{{ messages.append({'role': 'x'}) }}",
    "{{ messages.__setitem__(0, 1) }}",
    "{{ [].__class__.__base__ }}",
    "{{ dict.__base__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__ }}",
    "{{ strftime_now.__func__ }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_leaves_its_sandbox(source):
    """Each is refused, or renders nothing of Python's insides."""
    try:
        text = ChatTemplate(source, "<s>", "</s>").render([{"role": "user", "content": "hi"}])
    except (RequestError, ModelFileError):
        return
    assert not any(word in text for word in ("class", "<built", "object at", "function", "module", "root:")), text


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
        "{{ " + "[" * 6000 + "]" * 6000 + " }}",
        "{{ " + "-" * 6000 + "1 }}",
        "{{ 1" + " + 1" * 6000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**(10**10) }}",
        "{{ range(10**9)|list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}{{ x.v|length }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%*d'|format(10**9, 1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.zfill(10**9) }}",
        "{{ 'x'.center(10**9) }}",
        "{{ 'x'|center(10**9) }}",
        "{{ 'x\ny'|indent(width=10**9) }}",
    ],
    ids=lambda source: source[:40],
)
def test_a_template_that_would_not_end_ends(source):
    """By its budget, as an error of the model file or of the request; parser and renderer alike. A width in a format, or in a method
    of a text, once took a gigabyte and 16 seconds."""
    with pytest.raises((RequestError, ModelFileError)):
        ChatTemplate(source, "<s>", "</s>").render([{"role": "user", "content": "hi"}])


def test_jinja_is_recent_enough():
    """Earlier versions can be left through `|attr`."""
    assert tuple(int(part) for part in jinja2.__version__.split(".")[:3]) >= (3, 1, 6)


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (8, "<Q", 2**32 - 1),  # number of tensors
        (8, "<Q", 2**63),
        (8, "<Q", 2**64 - 1),
        (16, "<Q", 2**32 - 1),  # number of metadata entries
        (16, "<Q", 2**63),
        (24, "<Q", 2**63),  # length of the first key
        (24, "<Q", 0),
        (4, "<I", 99),  # version
        (4, "<I", 0),
    ],
)
def test_hostile_counts_in_a_header(tmp_path, tiny_model_path, at, form, value):
    """Refused by arithmetic, before anything of that size is allocated."""
    data = bytearray(tiny_model_path.read_bytes())
    struct.pack_into(form, data, at, value)
    refused(tmp_path, bytes(data))


def refused(folder: Path, data: bytes) -> None:
    path = folder / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        read_all(path)


def read_all(path: Path) -> None:
    file = GGUFFile.open(path)
    for name in file.tensors:
        bytes(file.data(name)[-1:])
    file.close()


def test_a_file_cut_anywhere_is_refused(tmp_path, tiny_model_path):
    """A hundred places, from the first byte to the last."""
    data = tiny_model_path.read_bytes()
    for cut in [*range(0, 40), *random.Random(0).sample(range(40, len(data) - 1), 60)]:
        refused(tmp_path, data[:cut])


def test_a_file_changed_anywhere_is_refused_or_read(tmp_path, tiny_model_path):
    """A thousand single bytes of the header: a ModelFileError, or a file whose tensors lie within it; never another end."""
    data, draw = tiny_model_path.read_bytes(), random.Random(1)
    for _ in range(1000):
        changed = bytearray(data)
        changed[draw.randrange(12_000)] = draw.randrange(256)
        path = tmp_path / "changed.gguf"
        path.write_bytes(changed)
        try:
            read_all(path)
        except ModelFileError:
            pass


@pytest.mark.parametrize("target", TARGETS)
def test_files_changed_at_random_are_refused_or_read(target):
    """Four hundred changed files of each kind: a ModelFileError in one line, or a model that reads whole, in little memory."""
    tried, accepted = fuzz(target, 7, 1e9, 400)
    assert tried == 400 and 0 < accepted <= 400


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS)
def test_model_files_and_a_fuzzer_that_does_not_tire(target):
    """Fifty thousand of each kind."""
    assert fuzz(target, 8, 1e9, 50_000)[0] == 50_000


@pytest.mark.parametrize("write", [write_safetensors, write_index])
def test_a_checkpoint_cut_anywhere_is_refused(tmp_path, write):
    """Each of its files, from empty to a byte less than whole."""
    folder = write(tmp_path)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for cut in [*range(0, 40), *random.Random(0).sample(range(40, len(whole)), min(40, len(whole) - 40))]:
            path.write_bytes(whole[:cut])
            with pytest.raises(ModelFileError):
                open_checkpoint(folder)
        path.write_bytes(whole)
    open_checkpoint(folder)


def test_links_and_devices_are_not_waited_on(tmp_path):
    """A pipe, a folder or a device in a file's place is refused at once."""
    folder = write_safetensors(tmp_path)
    for name in ("model.safetensors", "config.json"):
        whole = (folder / name).read_bytes()
        for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
            (folder / name).unlink()
            make(folder / name)
            with pytest.raises(ModelFileError):
                open_checkpoint(folder)
            (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink()
            (folder / name).write_bytes(whole)
