"""Builds native code: `python -m amago.kernels.build` ahead of time, or at the first call that needs it.

The package is pure Python with C++ and CUDA sources inside: installing it needs no compiler, and no binary is tied
to one torch, for the sources see addresses, sizes and strides only. A build takes some seconds, once per machine.
Its file name is a hash of everything that it depends on, and it lies in

    $AMAGO_KERNELS_CACHE, else $XDG_CACHE_HOME/amago-kernels, else ~/.cache/amago-kernels

A module is compiled into a temporary folder there and moved into place in one step, so a killed build leaves
nothing that is ever loaded. Processes that need the same module at once wait for the first to build it.
AMAGO_KERNELS_BUILD=never forbids building: then only modules built before are used. CXX and NVCC name the
compilers. Builds of other versions stay, for another process may use them; the folder may be deleted at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from amago.kernels.native import EXTENSIONS, PACKAGE, BuildError, Extension

_log = logging.getLogger("amago.kernels")

# No -ffast-math: NaN and infinity carry meaning here. -fno-math-errno and -fno-trapping-math let loops with
# branches vectorise.
_CXX_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# Denormals count as 0: keeping them costs three more instructions for every exponential.
NVCC_FLAGS = ("-O3", "-std=c++17", "-ftz=true", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden")
BUILD_SECONDS = 300.0  # limit for one build, and for waiting for another process's build
_VERSION_SECONDS = 30.0  # limit for a compiler's answer to --version
_STALE_SECONDS = 3600.0  # age at which the temporary folder of a killed build is removed


def may_build() -> bool:
    """Whether this process may build native code, or only load it."""
    choice = os.environ.get("AMAGO_KERNELS_BUILD", "auto")
    if choice not in ("auto", "never"):
        raise ValueError(f"AMAGO_KERNELS_BUILD must be 'auto' or 'never', got {choice!r}")
    return choice == "auto"


# Compilers


@dataclass(frozen=True)
class Compiler:
    """A compiler: the command that runs it and the first line of its version."""

    command: tuple[str, ...]
    version: str


def find_compiler(cuda: bool = False) -> Compiler | None:
    """The C++ compiler (CXX, or c++, g++, clang++ on the PATH) or nvcc (NVCC, or on the PATH); None if absent."""
    for words in _candidates("NVCC", ["nvcc"]) if cuda else _candidates("CXX", ["c++", "g++", "clang++"]):
        path = shutil.which(words[0])
        if path is None:
            continue
        command = (os.path.abspath(path), *words[1:])
        version = _version(command)
        if version is not None:
            return Compiler(command, version)
    return None


def _candidates(variable: str, defaults: list[str]) -> list[list[str]]:
    named = os.environ.get(variable, "")
    if not named.strip():
        return [[name] for name in defaults]
    try:
        return [shlex.split(named)]
    except ValueError:  # an unclosed quote
        return []


@cache
def _version(command: tuple[str, ...]) -> str | None:
    """A compiler's version; None if it cannot be run."""
    try:
        done = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).strip().replace("\n", "; ")


@cache
def cpu_features() -> str:
    """The processor's instruction sets as Linux lists them: a build for one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {features.partition(':')[2].strip()}"


def flags(extension: Extension) -> tuple[str, ...]:
    """Compiler flags for this machine's processor or GPU, without paths."""
    if extension.cuda:
        major, minor = torch.cuda.get_device_capability()
        return (*NVCC_FLAGS, f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}")
    if platform.machine() in ("x86_64", "AMD64"):
        wide = ("-mprefer-vector-width=512",) if "avx512f" in cpu_features() else ()
        return (*_CXX_FLAGS, "-march=native", *wide)
    return (*_CXX_FLAGS, "-mcpu=native")


def why_not(extension: Extension) -> list[str]:
    """Reasons why the module cannot be built here; empty if a build can be tried."""
    reasons = []
    if not extension.has_hardware():
        reasons.append("there is no CUDA device")
    if extension.cuda and find_compiler(cuda=True) is None:
        reasons.append("nvcc is not on the PATH: install the CUDA toolkit or set NVCC")
    if not sys.platform.startswith("linux"):
        reasons.append(f"native code is built on Linux only, this is {sys.platform}")
    if not may_build():
        reasons.append("it is not built, and AMAGO_KERNELS_BUILD=never forbids building")
    if find_compiler() is None:
        named = os.environ.get("CXX", "")
        found = "none of c++, g++, clang++ is on the PATH"
        if named.strip():
            found = f"CXX={named!r} does not exist or cannot be run"
        reasons.append(f"no C++ compiler: {found}; install one (Debian: apt install g++) or set CXX")
    headers = sysconfig.get_paths()["include"]
    if not Path(headers, "Python.h").exists():
        reasons.append(f"Python's headers are not in {headers} (Debian: apt install python3-dev)")
    if _pybind11() is None:
        reasons.append("pybind11 is not installed: pip install pybind11")
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        reasons.append(_unwritable(folder))
    return reasons


def _pybind11() -> str | None:
    """The version of pybind11; None if it is not installed."""
    try:
        return importlib.metadata.version("pybind11")
    except importlib.metadata.PackageNotFoundError:
        return None


# The cache


def cache_folder() -> Path:
    """The folder of builds, which several processes and users may share."""
    own = os.environ.get("AMAGO_KERNELS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "amago-kernels"


def _unwritable(folder: Path) -> str:
    return f"the cache {folder} cannot be written to: set AMAGO_KERNELS_CACHE to a folder that can"


def _key(extension: Extension) -> str:
    """Hash of everything that the binary depends on but the compiler: sources, flags, Python and processor."""
    digest = hashlib.sha256()
    for path in (*extension.sources, *sorted(PACKAGE.rglob("csrc/*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    setting = (
        extension.name,
        flags(extension),
        sysconfig.get_config_var("SOABI"),
        _pybind11(),
        cpu_features(),
    )
    digest.update(repr(setting).encode())
    return digest.hexdigest()[:20]


def _file(extension: Extension, compiler: Compiler) -> Path:
    by = hashlib.sha256(repr(compiler).encode()).hexdigest()[:8]
    return cache_folder() / f"{extension.name}-{_key(extension)}-{by}.so"


def built_file(extension: Extension) -> Path | None:
    """The file to load, if there is one: this compiler's build, or any compiler's if none can build here."""
    compiler = find_compiler(extension.cuda)
    if compiler is not None and may_build():
        path = _file(extension, compiler)
        return path if path.exists() else None
    return next(iter(sorted(cache_folder().glob(f"{extension.name}-{_key(extension)}-*.so"))), None)


def remove(path: Path, error: ImportError) -> None:
    """Removes a build that cannot be loaded.

    Raises:
        BuildError: if it cannot be removed either.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as refusal:
        remedy = f"{_unwritable(path.parent)} ({refusal})"
        raise BuildError(f"{path} cannot be loaded ({error}), and {remedy}") from error


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Holds a lock file; the kernel frees it when the holder dies.

    After BUILD_SECONDS it continues without the lock: two builds of one file do no harm, the last one stays.
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


def _remove_stale(folder: Path) -> None:
    """Removes temporary folders of builds that were killed long ago."""
    for left in folder.glob(".building-*"):
        try:
            old = time.time() - left.stat().st_mtime > _STALE_SECONDS
        except FileNotFoundError:
            continue  # another process removed it
        if old:
            shutil.rmtree(left, ignore_errors=True)


# Building


def build(extension: Extension, *, again: bool = False) -> Path:
    """Builds a module unless that was done, and returns its file.

    Args:
        extension: the module.
        again: build even if it was built before.

    Raises:
        BuildError: if something that building needs is missing, or the compiler fails.
    """
    reasons = why_not(extension)
    if reasons:
        raise BuildError("; ".join(reasons))
    compiler = find_compiler(extension.cuda)
    assert compiler is not None
    target = _file(extension, compiler)
    try:
        with _locked(target.with_suffix(".lock")):
            if again or not target.exists():  # the previous holder of the lock may have built it
                _log.warning("building %s, once for this machine (some seconds)", extension.name)
                _compile(compiler, extension, target)
    except OSError as error:
        raise BuildError(f"{_unwritable(target.parent)} ({error})") from error
    return target


def _compile(compiler: Compiler, extension: Extension, target: Path) -> None:
    """Compiles in a temporary folder beside `target`, then moves the result to it in one step."""
    import pybind11

    _remove_stale(target.parent)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        output = Path(folder, target.name)
        includes = [sysconfig.get_paths()["include"], pybind11.get_include(), PACKAGE / "csrc", PACKAGE]
        command = [
            *compiler.command,
            *flags(extension),
            *(f"-I{path}" for path in includes),
            *(str(path) for path in extension.sources),
            "-o",
            str(output),
        ]
        _run(command, Path(folder), output)
        with output.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(output, target)


def _run(command: Sequence[str], folder: Path, output: Path) -> None:
    """Runs a compiler's command in a folder.

    Raises:
        BuildError: if it fails, takes too long, or writes no output.
    """
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS,
            check=False,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{shown} took longer than {BUILD_SECONDS:.0f} s") from None
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise BuildError(f"{shown} failed with exit status {done.returncode}:\n{tail}")
    if not output.exists():
        raise BuildError(f"{shown} wrote no file: is {command[0]} a compiler? (CXX names it)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and loads every module or the named ones; returns the exit status, 1 if one failed."""
    names = [extension.name for extension in EXTENSIONS]
    parser = argparse.ArgumentParser(
        prog="python -m amago.kernels.build",
        description="Builds the native code ahead of time, for an image or a cluster's shared cache. Afterwards "
        "AMAGO_KERNELS_BUILD=never keeps later processes from building anything.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"modules to build: {', '.join(names)}; by default all that this machine has the hardware for",
    )
    parser.add_argument("--again", action="store_true", help="build even what was built before")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    status = 0
    for extension in EXTENSIONS:
        wanted = extension.name in options.names if options.names else extension.has_hardware()
        if not wanted:
            continue
        start = time.perf_counter()
        try:
            path = build(extension, again=options.again)
            extension.load()
        except BuildError as error:
            print(f"{extension.name}: {error}", file=sys.stderr)
            status = 1
        else:
            print(f"{extension.name}: {path} ({time.perf_counter() - start:.1f} s)")
    return status


if __name__ == "__main__":
    sys.exit(main())
