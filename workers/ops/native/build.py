"""Builds the native ops: `python -m workers.ops.native.build`, and as the build step of `pip install`.

Each file gets its own flags: only the code of one instruction set is compiled for it. The library carries a hash of the sources
and flags, so that a library older than its sources is found out when it is loaded. Needs only the standard library and a C++
compiler; setuptools is touched only where setuptools runs it.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_DIR = Path(__file__).resolve().parent
LIBRARY_NAME = "libhelexa_ops.so"

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra")
NUMERIC_FLAGS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # never -ffast-math: see docs/native-ops.md
X86_FLAGS = {
    "variant_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
    "variant_avx512.cpp": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c"),
}


class BuildError(Exception):
    """The library could not be built; says what the compiler said."""


def source_hash(folder: Path = SOURCE_DIR) -> str:
    """SHA-256 of the C++ sources and of this file, in a fixed order."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h"), folder / "build.py"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find_compiler() -> list[str]:
    """The C++ compiler Python was built with if it is here, else one of the usual names."""
    configured = (sysconfig.get_config_var("CXX") or "").split()
    if configured and shutil.which(configured[0]):
        return configured
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C++ compiler found: install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stderr:
        sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise BuildError(f"the compiler failed: {' '.join(command)}")


def build(target: Path = SOURCE_DIR / LIBRARY_NAME, compiler: list[str] | None = None, extra: tuple[str, ...] = ()) -> Path:
    """Compiles all sources and puts the library at `target`, in one rename."""
    compiler = compiler or find_compiler()
    define = f'-DHELEXA_SOURCE_HASH="{source_hash()}"'
    x86 = platform.machine() in ("x86_64", "AMD64")
    sources = sorted(SOURCE_DIR.glob("*.cpp"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        objects = [str(Path(folder, source.stem + ".o")) for source in sources]

        def compile_one(source: Path, out: str) -> None:
            own = X86_FLAGS.get(source.name, ()) if x86 else ()
            _run([*compiler, *FLAGS, *NUMERIC_FLAGS, *own, *extra, define, "-c", str(source), "-o", out])

        with ThreadPoolExecutor() as threads:
            list(threads.map(compile_one, sources, objects))
        built = Path(folder, LIBRARY_NAME)
        # The portable objects come first: of a function that several files hold, the linker keeps the first.
        objects.sort(key=lambda name: "avx" in name)
        _run([*compiler, "-shared", "-pthread", *extra, *objects, "-o", str(built)])
        built.replace(target)
    return target


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
