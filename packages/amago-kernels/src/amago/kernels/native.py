"""The package's native modules (C++ and CUDA): which there are, and how they are loaded.

A module is built on this machine when it is first needed (`amago.kernels.build`) and kept for later processes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

PACKAGE = Path(__file__).parent


class BuildError(RuntimeError):
    """Native code could not be built or loaded; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Extension:
    """A native module.

    Args:
        name: name of the module that the sources define.
        sources: C++ or CUDA files, compiled together.
        cuda: whether nvcc compiles it, for the GPU of this machine.
    """

    name: str
    sources: tuple[Path, ...]
    cuda: bool = False
    _loaded: dict[str, ModuleType | str] = field(default_factory=dict, compare=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def has_hardware(self) -> bool:
        """Whether this machine has the device that the module runs on."""
        return torch.cuda.is_available() if self.cuda else True

    def missing(self, build: bool = False) -> list[str]:
        """Reasons why it cannot run here; empty if it can.

        Args:
            build: build and load it first if needed; otherwise only what is known without building counts.
        """
        if build and self.has_hardware():
            try:
                self.load()
            except BuildError as error:
                return [str(error)]
            return []
        from amago.kernels.build import binary, why_not

        if isinstance(self._loaded.get("module"), str):
            return [str(self._loaded["module"])]
        reasons = why_not(self)
        return [] if reasons and self.has_hardware() and binary(self).exists() else reasons

    def load(self) -> ModuleType:
        """Returns the module, built first if needed.

        Raises:
            BuildError: if it cannot be built or loaded. It is not retried in this process.
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
        # Imported here, for `python -m amago.kernels.build` must not find itself imported already.
        from amago.kernels import build

        path = build.binary(self)
        if not path.exists():
            build.build(self)
        try:
            return _import(self.name, path)
        except ImportError as error:
            raise BuildError(f"{path} cannot be loaded, delete it to build it again: {error}") from error


def _import(name: str, path: Path) -> ModuleType:
    """Imports the extension module of that name from that file.

    Raises:
        ImportError: if it is not a module that this Python can load.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


TWO_HOT = Extension("amago_two_hot", (PACKAGE / "two_hot" / "csrc" / "two_hot.cpp",))
ATTENTION_STEP = Extension("amago_attention_step", (PACKAGE / "attention" / "csrc" / "attention_step.cpp",))
SELECTIVE_SCAN = Extension("amago_selective_scan", (PACKAGE / "scan" / "csrc" / "selective_scan.cpp",))
ACTING = Extension("amago_acting", (PACKAGE / "acting" / "csrc" / "acting.cpp",))
TWO_HOT_CUDA = Extension(
    "amago_two_hot_cuda",
    tuple(PACKAGE / "two_hot" / "csrc" / name for name in ("two_hot.cu", "two_hot_cuda.cpp")),
    cuda=True,
)
ATTENTION_STEP_CUDA = Extension(
    "amago_attention_step_cuda",
    tuple(PACKAGE / "attention" / "csrc" / name for name in ("attention_step.cu", "attention_step_cuda.cpp")),
    cuda=True,
)

EXTENSIONS = (TWO_HOT, ATTENTION_STEP, SELECTIVE_SCAN, ACTING, TWO_HOT_CUDA, ATTENTION_STEP_CUDA)

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def operand(x: Tensor | None) -> tuple[int, Sequence[int]]:
    """Address and strides of a tensor, as native code takes them; address 0 for None."""
    return (0, ()) if x is None else (x.data_ptr(), x.stride())
