"""Native code, built on this machine when it is first needed, and kept for the next process.

The package is pure Python with C++ sources inside: installing it needs no compiler, and no binary is tied to
one torch, for the sources see addresses, sizes and strides only. A build takes some seconds, once; its file is
named by everything that it depends on, and lies in

    $AMAGO_KERNELS_CACHE, else $XDG_CACHE_HOME/amago-kernels, else ~/.cache/amago-kernels

It is made in a folder beside the others and moved to its name in one step: whoever looks finds all of it or
nothing, and a build that was killed leaves nothing behind that anybody would load. Processes that want the same
file at once wait for the first to make it. AMAGO_KERNELS_BUILD=never forbids building: then only what
`python -m amago.kernels.build` made ahead of time is used. CXX names the compiler; c++, g++ or clang++ otherwise.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

_log = logging.getLogger("amago.kernels")

PACKAGE = Path(__file__).parent
SHARED = PACKAGE / "csrc"
# No -ffast-math: NaN and infinity mean something here. The two exceptions let loops with branches vectorise.
FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
)
BUILD_SECONDS = 300.0  # for one build, and for waiting until another process has made it
STALE_SECONDS = 3600.0  # age of a folder that a killed build left, after which it is removed


class BuildError(RuntimeError):
    """Native code could not be built or loaded; the message says why, and what would help."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that calls it and what it says of its version."""

    command: tuple[str, ...]
    version: str


def cache_folder() -> Path:
    """Where builds are kept; see the head of this module."""
    own = os.environ.get("AMAGO_KERNELS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "amago-kernels"


def may_build() -> bool:
    """Whether code may be built in this process, or only loaded."""
    choice = os.environ.get("AMAGO_KERNELS_BUILD", "auto")
    if choice not in ("auto", "never"):
        raise ValueError(f"AMAGO_KERNELS_BUILD must be 'auto' or 'never', got {choice!r}")
    return choice == "auto"


def find_compiler() -> Compiler | None:
    """The C++ compiler of CXX, or the first of the usual ones on the PATH; None if there is none."""
    named = os.environ.get("CXX")
    for words in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(words[0])
        if path is not None:
            command = (os.path.abspath(path), *words[1:])
            return Compiler(command, _version(command))
    return None


@cache
def _version(command: tuple[str, ...]) -> str:
    """The first line of what the compiler says of itself."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).partition("\n")[0]


@cache
def cpu_features() -> str:
    """The processor's instruction sets, as the kernel lists them: a build for one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {features.partition(':')[2].strip()}"


def _native_flags() -> tuple[str, ...]:
    """Flags for this processor, with vectors as long as it has them."""
    if platform.machine() in ("x86_64", "AMD64"):
        wide = ("-mprefer-vector-width=512",) if "avx512f" in cpu_features() else ()
        return ("-march=native", *wide)
    return ("-mcpu=native",)


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
        return (*FLAGS, *_native_flags())

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
            importlib.metadata.version("pybind11"),
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
                path.unlink(missing_ok=True)
        try:
            return _import(self.name, self.build())
        except ImportError as error:
            raise BuildError(f"{self.name} was built but cannot be loaded: {error}") from error

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
            with _only_one(target.with_suffix(".lock")):
                if again or not target.exists():  # whoever had the lock before may have made it
                    _log.warning("building %s, once for this machine (some seconds)", self.name)
                    _compile(compiler, self, target)
        except OSError as error:
            raise BuildError(f"{_unwritable(target.parent)} ({error})") from error
        return target


def why_no_building() -> list[str]:
    """What is missing for building here; nothing if a build can be tried."""
    reasons = []
    if not sys.platform.startswith("linux"):
        reasons.append(f"native code is built on Linux only, this is {sys.platform}")
    if not may_build():
        reasons.append("it is not built, and AMAGO_KERNELS_BUILD=never forbids to")
    if find_compiler() is None:
        named = os.environ.get("CXX")
        wanted = f"CXX={named!r} is not there" if named else "none of c++, g++, clang++ is on the PATH"
        reasons.append(f"no C++ compiler: {wanted}; install one (Debian: apt install g++) or set CXX")
    headers = sysconfig.get_paths()["include"]
    if not Path(headers, "Python.h").exists():
        reasons.append(f"Python's headers are not in {headers} (Debian: apt install python3-dev)")
    return reasons + _why_not_writable(cache_folder())


def _why_not_writable(folder: Path) -> list[str]:
    """The reason why nothing can be written into a folder that may not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return []
    return [_unwritable(folder)]


def _unwritable(folder: Path) -> str:
    """What is wrong with a cache that takes no file, and the remedy."""
    return f"the cache {folder} cannot be written to: set AMAGO_KERNELS_CACHE to a folder that can"


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Holds a lock file; the kernel frees it when the holder dies.

    After BUILD_SECONDS of waiting it goes on without: two builds of one file do no harm, the last one stays.
    """
    import fcntl

    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        give_up = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < give_up:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        yield  # closing the file frees the lock


def _compile(compiler: Compiler, extension: Extension, target: Path) -> None:
    """Compiles into a folder of its own, then moves the result to `target` in one step."""
    _remove_stale(target.parent)
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
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"{shlex.join(command)} took longer than {BUILD_SECONDS:.0f} s") from None
        if done.returncode != 0:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
            raise BuildError(f"{shlex.join(command)} failed with exit status {done.returncode}:\n{tail}")
        with output.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(output, target)


def _remove_stale(folder: Path) -> None:
    """Removes what builds that were killed long ago left behind."""
    for left in folder.glob(".building-*"):
        try:
            old = time.time() - left.stat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            continue  # another process was quicker
        if old:
            shutil.rmtree(left, ignore_errors=True)


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
