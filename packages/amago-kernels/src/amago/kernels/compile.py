"""Native code, built on this machine when it is first needed, and kept for the next process.

The package is pure Python with C++ sources inside: installing it needs no compiler, and no binary is tied to
one torch, for the sources see addresses, sizes and strides only. A build takes some seconds, once; its file is
named by everything that it depends on, and lies in

    $AMAGO_KERNELS_CACHE, else $XDG_CACHE_HOME/amago-kernels, else ~/.cache/amago-kernels

It is made in a folder beside the others and moved to its name in one step: whoever looks finds all of it or
nothing, and a build that was killed leaves nothing behind that anybody would load. Processes that want the same
file at once wait for the first to make it. AMAGO_KERNELS_BUILD=never forbids building: then only what
`python -m amago.kernels.build` made ahead of time is used. Which compiler builds, says `compiler`.

Builds of other versions stay: nobody here can tell whether they are still in use, for machines with another
processor or another Python may share the folder and be allowed only to read it, which leaves no trace, or be
forbidden to build what they would miss. The folder may be deleted at any time; what is needed is built again.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import sys
import sysconfig
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from amago.kernels.build_cache import cache_folder, only_one, remove_stale, unwritable, why_not_writable
from amago.kernels.compiler import (
    FLAGS,
    BuildError,
    Compiler,
    cpu_features,
    find_compiler,
    native_flags,
    run_compiler,
    why_no_compiler,
)

__all__ = [
    "PACKAGE",
    "BuildError",
    "Compiler",
    "Extension",
    "cache_folder",
    "cpu_features",
    "find_compiler",
    "may_build",
    "why_no_building",
]

_log = logging.getLogger("amago.kernels")

PACKAGE = Path(__file__).parent
SHARED = PACKAGE / "csrc"


def may_build() -> bool:
    """Whether code may be built in this process, or only loaded."""
    choice = os.environ.get("AMAGO_KERNELS_BUILD", "auto")
    if choice not in ("auto", "never"):
        raise ValueError(f"AMAGO_KERNELS_BUILD must be 'auto' or 'never', got {choice!r}")
    return choice == "auto"


@dataclass(frozen=True)
class Extension:
    """A module of native code, a `Requirement` of the backends that call it.

    Args:
        name: of the module that the sources define.
        sources: C++ or CUDA files, compiled together.
    """

    name: str
    sources: tuple[Path, ...]
    _loaded: dict[str, ModuleType | str] = field(default_factory=dict, compare=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def find_compiler(self) -> Compiler | None:
        """What compiles it; None if that is not here."""
        return find_compiler()

    def flags(self) -> tuple[str, ...]:
        """What the compiler is told, paths excepted."""
        return (*FLAGS, *native_flags())

    def why_no_building(self) -> list[str]:
        """What is missing for building it here; nothing if a build can be tried."""
        return why_no_building()

    def has_hardware(self) -> bool:
        """Whether this machine has what the built module runs on."""
        return True

    def source_key(self) -> str:
        """Names what the binary depends on, the compiler excepted: sources, flags, Python and processor."""
        digest = hashlib.sha256()
        own = {header for source in self.sources for header in source.parent.glob("*.h")}
        for path in (*self.sources, *sorted(own), *sorted(SHARED.glob("*.h"))):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        setting = (
            self.name,
            self.flags(),
            sysconfig.get_config_var("SOABI"),
            _pybind11(),
            cpu_features(),
        )
        digest.update(repr(setting).encode())
        return digest.hexdigest()[:20]

    def file(self, compiler: Compiler) -> Path:
        """Where the build by that compiler is or will be."""
        by = hashlib.sha256(repr(compiler).encode()).hexdigest()[:8]
        return cache_folder() / f"{self.name}-{self.source_key()}-{by}.so"

    def built_file(self) -> Path | None:
        """The file to load, if there is one: this compiler's, or any compiler's where there is none now."""
        compiler = self.find_compiler()
        if compiler is not None and may_build():
            path = self.file(compiler)
            return path if path.exists() else None
        return next(iter(sorted(cache_folder().glob(f"{self.name}-{self.source_key()}-*.so"))), None)

    def missing(self) -> list[str]:
        """Why it cannot run here, as far as can be told without building; nothing if it is built."""
        failure = self._loaded.get("module")
        if isinstance(failure, str):
            return [failure]
        if failure is not None or self.built_file() is not None:
            return []
        return self.why_no_building()

    def failures(self) -> list[str]:
        """Why it cannot run here; builds and loads it if that was not done yet. Kept for the process."""
        try:
            self.load()
        except BuildError as error:
            return [str(error)]
        return []

    def load(self) -> ModuleType:
        """The module, built first if need be.

        Raises:
            BuildError: if it cannot be built or loaded. It is not tried again in this process.
        """
        with self._lock:
            if "module" not in self._loaded:
                try:
                    self._loaded["module"] = self._load()
                except BuildError as error:
                    self._loaded["module"] = str(error)
            outcome = self._loaded["module"]
        if isinstance(outcome, str):
            raise BuildError(outcome)
        return outcome

    def _load(self) -> ModuleType:
        path = self.built_file()
        if path is not None:
            try:
                return _import(self.name, path)
            except ImportError as error:
                if not may_build():
                    raise BuildError(f"{path} cannot be loaded: {error}") from error
                _log.warning("%s cannot be loaded (%s): building it again", path, error)
                self._remove(path, error)
        try:
            return _import(self.name, self.build())
        except ImportError as error:
            raise BuildError(f"{self.name} was built but cannot be loaded: {error}") from error

    def _remove(self, path: Path, error: ImportError) -> None:
        """Makes room for another build of a file that cannot be loaded."""
        try:
            path.unlink(missing_ok=True)
        except OSError as refusal:
            remedy = f"{unwritable(path.parent)} ({refusal})"
            raise BuildError(f"{path} cannot be loaded ({error}), and {remedy}") from error

    def build(self, *, again: bool = False) -> Path:
        """Builds it unless that was done, and returns the file.

        Args:
            again: build even if it was built before.

        Raises:
            BuildError: if something that building needs is missing, or the compiler fails.
        """
        reasons = self.why_no_building()
        if reasons:
            raise BuildError("; ".join(reasons))
        compiler = self.find_compiler()
        assert compiler is not None
        target = self.file(compiler)
        try:
            with only_one(target.with_suffix(".lock")):
                if again or not target.exists():  # whoever had the lock before may have made it
                    _log.warning("building %s, once for this machine (some seconds)", self.name)
                    _compile(compiler, self, target)
        except OSError as error:
            raise BuildError(f"{unwritable(target.parent)} ({error})") from error
        return target


def why_no_building() -> list[str]:
    """What is missing for building here; nothing if a build can be tried."""
    reasons = []
    if not sys.platform.startswith("linux"):
        reasons.append(f"native code is built on Linux only, this is {sys.platform}")
    if not may_build():
        reasons.append("it is not built, and AMAGO_KERNELS_BUILD=never forbids to")
    reasons += why_no_compiler()
    headers = sysconfig.get_paths()["include"]
    if not Path(headers, "Python.h").exists():
        reasons.append(f"Python's headers are not in {headers} (Debian: apt install python3-dev)")
    if _pybind11() is None:
        reasons.append("pybind11 is not installed: pip install pybind11")
    return reasons + why_not_writable(cache_folder())


def _pybind11() -> str | None:
    """The version of pybind11; None where it is not installed."""
    try:
        return importlib.metadata.version("pybind11")
    except importlib.metadata.PackageNotFoundError:
        return None


def _compile(compiler: Compiler, extension: Extension, target: Path) -> None:
    """Compiles into a folder of its own, then moves the result to `target` in one step."""
    remove_stale(target.parent)
    import pybind11

    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        output = Path(folder, target.name)
        includes = [sysconfig.get_paths()["include"], pybind11.get_include(), str(SHARED)]
        command = [
            *compiler.command,
            *extension.flags(),
            *(f"-I{path}" for path in includes),
            *(str(path) for path in extension.sources),
            "-o",
            str(output),
        ]
        run_compiler(command, Path(folder), output)
        with output.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(output, target)


def _import(name: str, path: Path) -> ModuleType:
    """The extension module of that name in that file.

    Raises:
        ImportError: if it is not a module that this Python can load.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
