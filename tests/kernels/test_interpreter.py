"""The Triton kernels without a GPU: Triton's interpreter runs their tests on the CPU."""

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED

pytestmark = pytest.mark.source_only

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"


@pytest.mark.parametrize(
    "names",
    [
        ("test_correctness.py",),
        ("test_two_hot.py", "test_two_hot_gpu.py", "test_scan_triton.py"),
        ("test_attention_triton.py",),
        ("test_attention_step_gpu.py",),
    ],
    ids=" ".join,
)
def test_the_interpreter_runs(run_in_interpreter, names):
    run_in_interpreter(*names)


def test_a_call_that_cannot_run_says_why():
    with pytest.raises(RuntimeError, match=r"need a CUDA device and logits is on cpu.*4096 bins, got 5000"):
        kernels.two_hot_mean(torch.zeros(2, 5000), Bins(-1.0, 1.0, 5000), backend="triton")
    sequence, rates = torch.zeros(2, 3, 4), torch.zeros(3, 300, dtype=torch.float64)
    shared = torch.zeros(2, 300, 4)
    with pytest.raises(RuntimeError, match=r"CUDA device and u is on cpu.* float64; .*at most 256 .*got 300"):
        kernels.selective_scan(sequence, sequence, rates, shared, shared, backend="triton")
    wide = torch.zeros(1, 2, 1, 136)
    with pytest.raises(RuntimeError, match="need a CUDA device and q is on cpu; it takes heads up to 128"):
        kernels.attention(wide, wide, wide, backend="triton")
