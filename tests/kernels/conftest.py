"""Fixtures of the kernels' tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.kernels import examples, samples, testing

from amago.kernels import build
from amago.kernels.backends import Backend, Unsupported, operations
from amago.kernels.native import TWO_HOT, Extension
from amago.kernels.triton_runtime import INTERPRETED

ROOT = Path(__file__).resolve().parents[2]
HEADERS = Path(__file__).with_name("cuda_on_cpu")
ON_GPU = (Backend.TRITON, Backend.CUDA, Backend.FLEX)


@dataclass(frozen=True)
class Case:
    """A backend of an operation, and the device of the tensors that it is tested with."""

    operation: str
    backend: str
    device: str

    def small(self, dtype: torch.dtype = torch.float32) -> examples.Example:
        """A call that every backend takes."""
        first = next(iter(samples.sample_calls(self.operation, self.device)))
        if INTERPRETED and self.operation == "selective_scan":
            first = examples.selective_scan(1, 2, 3, 2)
        elif INTERPRETED and self.operation == "attention":
            first = examples.attention(1, 3, 1)
        return first.mapped(lambda x: x.to(dtype))

    def with_gradients(self, example: examples.Example) -> bool:
        """Whether the backend takes the call with gradients."""
        try:
            testing.results(example, self.backend)
        except Unsupported:
            return False
        return True

    def check(self, example: examples.Example) -> bool:
        """`testing.check`, with gradients if the backend has them; False if it does not take the call at all."""
        for gradients in (True, False):
            try:
                testing.check(example, self.backend, gradients=gradients)
            except Unsupported:
                continue
            return True
        return False


def _cases(eager: bool) -> Iterator:
    """Every backend of every operation that this machine has, as parameters of a test."""
    for operation, implementations in operations().items():
        for implementation in implementations:
            backend = implementation.backend
            if implementation.missing(False) or (backend is Backend.EAGER and not eager):
                continue
            gpu = backend in ON_GPU and not INTERPRETED
            case = Case(operation, backend.value, "cuda" if gpu else "cpu")
            marks = [pytest.mark.gpu] if gpu else []
            yield pytest.param(case, marks=marks, id=f"{operation}-{backend.value}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take a `case` run for every backend but the eager ones, those of a `case_or_eager` for all."""
    for name in ("case", "case_or_eager"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(_cases(name == "case_or_eager")))


@pytest.fixture(scope="session")
def cuda_on_cpu(tmp_path_factory):
    """Compiles CUDA sources of an extension as C++ whose threads are coroutines, and loads the module.

    Takes the extension and the type of its kernels' argument, which a kernel's address does not tell here.
    """

    def load(extension, argument: str):
        folder = tmp_path_factory.mktemp("cuda")
        wrapper = folder / "on_cpu.cpp"
        declared = f"namespace amago {{ struct {argument.rpartition(':')[2]}; }}"
        lines = ["#include <cuda_runtime.h>", declared, f"#define EMULATED_ARGUMENT {argument}"]
        lines += [f'#include "{path}"' for path in extension.sources]
        # The key of a build is made of its sources: here of the CUDA sources and the emulation's headers.
        texts = [path.read_bytes() for path in (*extension.sources, *sorted(HEADERS.glob("*.h")))]
        lines.append(f"// {hashlib.sha256(b''.join(texts)).hexdigest()}")
        wrapper.write_text("\n".join([*lines, ""]))
        with pytest.MonkeyPatch.context() as patch:
            flags = (*(flag for flag in build.flags(TWO_HOT) if flag != "-O3"), "-O0", f"-I{HEADERS}")
            patch.setattr(build, "flags", lambda _: flags)
            return Extension(extension.name, (wrapper,)).load()

    return load


@pytest.fixture
def build_for_gpu(monkeypatch):
    """Builds an extension of CUDA for a compute capability; returns the file. Skips where there is no nvcc."""

    def build_it(extension, capability: int) -> Path:
        if shutil.which("nvcc") is None:
            pytest.skip("nvcc is not on the PATH")
        quick = (*build.NVCC_FLAGS[1:], "-O0", "-Xcicc=-O0", "-Xptxas=-O0")
        flags = (*quick, f"-gencode=arch=compute_{capability},code=sm_{capability}")
        monkeypatch.setattr(build, "flags", lambda _: flags)
        monkeypatch.setattr(Extension, "has_hardware", lambda _: True)
        return build.build(extension)

    return build_it


@pytest.fixture
def poisoned():
    """Uninitialised memory is filled with NaN."""
    with testing.poisoned():
        yield


@pytest.fixture
def run_in_interpreter():
    """Runs the tests of Triton's kernels in files of this folder where its interpreter runs them, on the CPU.

    In a process of its own, for Triton asks for TRITON_INTERPRET once, when a kernel is defined.
    """

    def run(*names: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        files = [str(Path(__file__).with_name(name)) for name in names]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "triton",
            "-m",
            "not gpu",
        ]
        command += files
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

    return run


@dataclass(frozen=True)
class Compiled:
    """A kernel of Triton as a GPU runs it.

    Args:
        ptx: its text.
        registers: of a thread.
        stack: bytes of a thread in memory: what does not fit into registers, or is indexed.
        shared: bytes of a program.
    """

    ptx: str
    registers: int
    stack: int
    shared: int


@pytest.fixture
def compile_for_gpu(tmp_path):
    """Compiles a kernel of Triton for a GPU that need not be there, in the way of a launch on aligned tensors.

    Takes the kernel, the GPU's compute capability (90 is a Hopper), and what a launch would pass: types of
    pointers ("*bf16") and numbers by the names of the arguments, None for a tensor that is not given, and
    values of constants. What is not named is an integer divisible by 16. Returns what became of it.
    """

    def compile_it(
        kernel, capability: int, arguments: dict[str, object], warps: int = 4, stages: int = 3
    ) -> Compiled:
        import triton
        from triton.backends.compiler import GPUTarget

        signature, constants, attributes = {}, {}, {}
        for i, parameter in enumerate(kernel.params):
            given = arguments.get(parameter.name, "i32")
            if parameter.is_constexpr or not isinstance(given, str):
                signature[parameter.name], constants[(i,)] = "constexpr", given
                continue
            signature[parameter.name] = given
            if given != "fp32":
                attributes[(i,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(kernel, signature, constants, attributes)
        target, options = GPUTarget("cuda", capability, 32), {"num_warps": warps, "num_stages": stages}
        compiled = triton.compile(source, target=target, options=options)
        binary = tmp_path / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if not tool.exists():
            pytest.skip("triton came without cuobjdump")
        told = subprocess.run(
            [tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
        )
        usage = dict(re.findall(r"(REG|STACK):(\d+)", told.stdout))
        shared = compiled.metadata.shared
        return Compiled(compiled.asm["ptx"], int(usage["REG"]), int(usage["STACK"]), shared)

    return compile_it
