"""Builds native code: `python -m amago.kernels.build` ahead of time, or at the first call that needs it.

The package is pure Python with C++ and CUDA sources inside: installing it needs no compiler, and no binary is tied
to one torch, for the sources see addresses, sizes and strides only. A build takes some seconds, once per machine.
Its file name contains a hash of everything that it depends on. It is kept in

    $AMAGO_KERNELS_CACHE, else $XDG_CACHE_HOME/amago-kernels, else ~/.cache/amago-kernels

A module is compiled into a temporary file there and moved into place in one step, so a killed build leaves nothing
that is ever loaded. Processes that need the same module at once wait for the first to build it.
AMAGO_KERNELS_BUILD=never forbids building: then only modules built before are used. CXX and NVCC name the
compilers. Builds of other versions stay, for another process may use them; the folder may be deleted at any time.
"""

from __future__ import annotations

import argparse
import functools
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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_BUILD_SECONDS = 300.0


def _may_build() -> bool:
    """Whether this process may build native code, or only load it."""
    choice = os.environ.get("AMAGO_KERNELS_BUILD", "auto")
    if choice not in ("auto", "never"):
        raise ValueError(f"AMAGO_KERNELS_BUILD must be 'auto' or 'never', got {choice!r}")
    return choice == "auto"


def find_compiler(cuda: bool = False) -> list[str] | None:
    """The command of the C++ compiler (CXX, or c++, g++, clang++) or of nvcc (NVCC, or nvcc); None if absent."""
    named = os.environ.get("NVCC" if cuda else "CXX", "")
    defaults = ["nvcc"] if cuda else ["c++", "g++", "clang++"]
    for words in [shlex.split(named)] if named.strip() else [[name] for name in defaults]:
        if shutil.which(words[0]):
            return words
    return None


@functools.cache
def _cpu_features() -> str:
    """The processor's instruction sets as Linux lists them: a build for one need not run on another."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform.startswith("linux") else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {features.partition(':')[2].strip()}"


def flags(extension: Extension) -> tuple[str, ...]:
    """Compiler flags for this machine's processor or GPU, without paths."""
    if extension.cuda:
        major, minor = torch.cuda.get_device_capability()
        return (*NVCC_FLAGS, f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}")
    if platform.machine() == "x86_64":
        wide = ("-mprefer-vector-width=512",) if "avx512f" in _cpu_features() else ()
        return (*_CXX_FLAGS, "-march=native", *wide)
    return (*_CXX_FLAGS, "-mcpu=native")


def why_not(extension: Extension) -> list[str]:
    """Reasons why the module cannot be built here; empty if a build can be tried."""
    reasons = []
    if not extension.has_hardware():
        reasons.append("there is no CUDA device")
    if not sys.platform.startswith("linux"):
        reasons.append(f"native code is built on Linux only, this is {sys.platform}")
    if not _may_build():
        reasons.append("it is not built, and AMAGO_KERNELS_BUILD=never forbids building")
    if extension.cuda and find_compiler(cuda=True) is None:
        reasons.append("nvcc is not on the PATH: install the CUDA toolkit or set NVCC")
    if find_compiler() is None:
        named = os.environ.get("CXX")
        missing = f"CXX={named!r} does not exist" if named else "none of c++, g++, clang++ is on the PATH"
        reasons.append(f"no C++ compiler: {missing}; install one (Debian: apt install g++) or set CXX")
    return reasons


def cache_folder() -> Path:
    """The folder of builds, which several processes and users may share."""
    own = os.environ.get("AMAGO_KERNELS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "amago-kernels"


def binary(extension: Extension) -> Path:
    """The file of a module's build, whether it exists or not."""
    digest = hashlib.sha256()
    for path in (*extension.sources, *sorted(PACKAGE.rglob("csrc/*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    soabi = sysconfig.get_config_var("SOABI")
    pybind11 = importlib.metadata.version("pybind11")
    digest.update(repr((extension.name, flags(extension), soabi, pybind11, _cpu_features())).encode())
    return cache_folder() / f"{extension.name}-{digest.hexdigest()[:20]}.so"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock file; the kernel frees it when the holder dies."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file frees the lock


def build(extension: Extension) -> Path:
    """Builds a module unless that was done, and returns its file.

    Raises:
        BuildError: if something that building needs is missing, or the compiler fails.
    """
    reasons = why_not(extension)
    if reasons:
        raise BuildError("; ".join(reasons))
    target = binary(extension)
    try:
        with _locked(target.with_suffix(".lock")):
            if not target.exists():  # the previous holder of the lock may have built it
                _log.warning("building %s, once for this machine (some seconds)", extension.name)
                _compile(extension, target)
    except OSError as error:
        remedy = "set AMAGO_KERNELS_CACHE to a folder that can"
        raise BuildError(f"the cache {target.parent} cannot be written to: {remedy} ({error})") from error
    return target


def _compile(extension: Extension, target: Path) -> None:
    """Compiles to a temporary file in the directory of `target`, then renames it atomically.

    Raises:
        BuildError: if the compiler fails or takes too long.
    """
    import pybind11

    compiler = find_compiler(extension.cuda)
    assert compiler is not None
    unfinished = target.with_suffix(".tmp")
    includes = [sysconfig.get_paths()["include"], pybind11.get_include(), PACKAGE / "csrc", PACKAGE]
    command = [*compiler, *flags(extension), *(f"-I{path}" for path in includes)]
    command += [*map(str, extension.sources), "-o", str(unfinished)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{shlex.join(command)} took longer than {_BUILD_SECONDS:.0f} s") from None
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise BuildError(f"{shlex.join(command)} failed with exit status {done.returncode}:\n{tail}")
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(unfinished, target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and loads every module that this machine has the hardware for; returns 1 if one failed, else 0."""
    argparse.ArgumentParser(
        prog="python -m amago.kernels.build",
        description="Builds the native code ahead of time, for an image or a cluster's shared cache. Afterwards "
        "AMAGO_KERNELS_BUILD=never keeps later processes from building anything.",
    ).parse_args(arguments)
    status = 0
    for extension in EXTENSIONS:
        if not extension.has_hardware():
            continue
        start = time.perf_counter()
        try:
            path = build(extension)
            extension.load()
        except BuildError as error:
            print(f"{extension.name}: {error}", file=sys.stderr)
            status = 1
        else:
            print(f"{extension.name}: {path} ({time.perf_counter() - start:.1f} s)")
    return status


if __name__ == "__main__":
    sys.exit(main())
