"""Native code for GPUs: what `compile` does for C++, with nvcc and for the GPU that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

import torch

from amago.kernels.compile import Compiler, Extension, why_no_building

# Numbers below 1e-38 count as 0: to keep them costs three more instructions for every exponential.
FLAGS = ("-O3", "-std=c++17", "-ftz=true", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden")


@cache
def _release(nvcc: str) -> str:
    """What the compiler says of its version."""
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr


@dataclass(frozen=True)
class CudaExtension(Extension):
    """A module of CUDA C++ and its binding, compiled for the current GPU by nvcc: NVCC, or the one on the PATH."""

    def find_compiler(self) -> Compiler | None:
        """nvcc, if it is here."""
        path = shutil.which(os.environ.get("NVCC") or "nvcc")
        return None if path is None else Compiler((os.path.abspath(path),), _release(path))

    def flags(self) -> tuple[str, ...]:
        """Those of every build, and the current GPU's architecture."""
        major, minor = torch.cuda.get_device_capability()
        return (*FLAGS, f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}")

    def has_hardware(self) -> bool:
        """Whether a CUDA device is here."""
        return torch.cuda.is_available()

    def why_no_building(self) -> list[str]:
        """What is missing: a device, nvcc, or what C++ needs too."""
        reasons = [] if self.has_hardware() else ["there is no CUDA device"]
        if self.find_compiler() is None:
            reasons.append("nvcc is not on the PATH: install the CUDA toolkit or set NVCC")
        return reasons + why_no_building()

    def missing(self) -> list[str]:
        """Why it cannot run here, as far as can be told without building; nothing if it is built."""
        return super().missing() if self.has_hardware() else self.why_no_building()

    def failures(self) -> list[str]:
        """Why it cannot run here; builds and loads it if that was not done yet."""
        return super().failures() if self.has_hardware() else self.why_no_building()
