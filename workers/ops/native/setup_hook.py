"""The build step of `pip install`: setuptools runs this in place of its own extension builder (see pyproject.toml)."""

# mypy: disable-error-code="import-untyped,misc"

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the project's folder is not on the path of an isolated build
from workers.ops.native.build import LIBRARY_NAME, BuildError, build


class BuildNative(build_ext):
    """Builds the library with `build`, under one name: it is loaded through ctypes and is the same for every Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1], LIBRARY_NAME))

    def build_extension(self, ext: Extension) -> None:
        try:
            build(Path(self.get_ext_fullpath(ext.name)))
        except BuildError as error:
            raise CompileError(str(error)) from error
