"""What the tests of several kernels share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amago.kernels import testing

ROOT = Path(__file__).resolve().parents[2]


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
