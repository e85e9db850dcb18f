"""What the tests of several kernels share."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from amago.kernels import cuda, testing
from amago.kernels.compile import Extension, cpu_features

ROOT = Path(__file__).resolve().parents[2]
HEADERS = Path(__file__).with_name("cuda_on_cpu")


@dataclass(frozen=True)
class OnCpu(Extension):
    """A module of CUDA C++ compiled for the CPU, quickly, and kept for as long as no source changes."""

    of: Extension = field(kw_only=True)

    def source_key(self):
        sources = [*self.of.sources, *self.of.sources[0].parent.glob("*.h"), *HEADERS.glob("*.h")]
        setting = repr((self.sources[0].read_text(), cpu_features(), sys.version))
        return hashlib.sha256(b"".join(map(Path.read_bytes, sources)) + setting.encode()).hexdigest()[:20]

    def flags(self):
        return (*(flag for flag in super().flags() if flag != "-O3"), "-O0", f"-I{HEADERS}")


@dataclass(frozen=True)
class ForTwoGpus(cuda.CudaExtension):
    """A module as nvcc builds it for an A100 and an H100, quickly; there need not be either."""

    def flags(self):
        quick = (*cuda.FLAGS[1:], "-O0", "-Xcicc=-O0", "-Xptxas=-O0")
        return (*quick, *(f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in (80, 90)))

    def has_hardware(self):
        return True


@pytest.fixture(scope="session")
def cuda_on_cpu(tmp_path_factory):
    """Compiles CUDA's sources of an extension as C++ whose threads are coroutines, and loads the module.

    Takes the extension and the type that its kernels take, for here a kernel's address says nothing of it.
    """

    def load(extension, argument: str):
        wrapper = tmp_path_factory.mktemp("cuda") / "on_cpu.cpp"
        declared = f"namespace amago {{ struct {argument.rpartition(':')[2]}; }}"
        lines = ["#include <cuda_runtime.h>", declared, f"#define EMULATED_ARGUMENT {argument}"]
        wrapper.write_text("\n".join([*lines, *(f'#include "{path}"' for path in extension.sources), ""]))
        return OnCpu(extension.name, (wrapper,), of=extension).load()

    return load


@pytest.fixture
def build_for_two_gpus():
    """Builds an extension of CUDA for two kinds of GPU; returns the file. Skips where there is no nvcc."""

    def build(extension) -> Path:
        if shutil.which("nvcc") is None:
            pytest.skip("nvcc is not on the PATH")
        return ForTwoGpus(extension.name, extension.sources).build()

    return build


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


@pytest.fixture
def compile_for_gpu():
    """Compiles a kernel of Triton for a GPU that need not be there, in the way of a launch on aligned tensors.

    Takes the kernel, the GPU's compute capability (90 is a Hopper), and what a launch would pass: types of
    pointers ("*bf16") and numbers by the names of the arguments, None for a tensor that is not given, and
    values of constants. What is not named is an integer divisible by 16. Returns the PTX.
    """

    def compile_it(kernel, capability: int, arguments: dict[str, object], warps: int = 4) -> str:
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
        target = GPUTarget("cuda", capability, 32)
        return triton.compile(source, target=target, options={"num_warps": warps}).asm["ptx"]

    return compile_it
