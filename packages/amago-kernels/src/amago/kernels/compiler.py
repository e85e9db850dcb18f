"""The C++ compiler of this machine: which one it is, what it is told, and one run of it.

CXX names it, with arguments if need be; c++, g++ or clang++ otherwise.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
_ANSWER_SECONDS = 30.0  # for a compiler to say which one it is


class BuildError(RuntimeError):
    """Native code could not be built or loaded; the message says why, and what would help."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that calls it and what it says of its version."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler | None:
    """The C++ compiler of CXX, or the first of the usual ones on the PATH; None if none can be run."""
    for words in _candidates():
        path = shutil.which(words[0])
        if path is None:
            continue
        command = (os.path.abspath(path), *words[1:])
        version = _version(command)
        if version is not None:
            return Compiler(command, version)
    return None


def _candidates() -> list[list[str]]:
    """The commands that may be the compiler."""
    named = os.environ.get("CXX", "")
    if not named.strip():
        return [["c++"], ["g++"], ["clang++"]]
    try:
        return [shlex.split(named)]
    except ValueError:  # a quote that is not closed
        return []


@cache
def _version(command: tuple[str, ...]) -> str | None:
    """The first line of what the compiler says of itself; None if it cannot be run."""
    try:
        done = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).partition("\n")[0]


def why_no_compiler() -> list[str]:
    """The reason why nothing can be compiled here, and the remedy; nothing if there is a compiler."""
    if find_compiler() is not None:
        return []
    named = os.environ.get("CXX", "")
    wanted = "none of c++, g++, clang++ is on the PATH"
    if named.strip():
        wanted = f"CXX={named!r} is not there or cannot be run"
    return [f"no C++ compiler: {wanted}; install one (Debian: apt install g++) or set CXX"]


@cache
def cpu_features() -> str:
    """The processor's instruction sets, as the kernel lists them: a build for one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {features.partition(':')[2].strip()}"


def native_flags() -> tuple[str, ...]:
    """Flags for this processor, with vectors as long as it has them."""
    if platform.machine() in ("x86_64", "AMD64"):
        wide = ("-mprefer-vector-width=512",) if "avx512f" in cpu_features() else ()
        return ("-march=native", *wide)
    return ("-mcpu=native",)


def run_compiler(command: Sequence[str], folder: Path, output: Path) -> None:
    """Runs a compiler's command in a folder; it shall write the output.

    Raises:
        BuildError: if it fails, takes too long, or writes nothing.
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
