"""Triton's kernels of the two-hot operations and the scan without a GPU: its interpreter runs them."""

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED
from amago.kernels.two_hot.rows import row_axes

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"


def test_the_interpreter_runs_the_two_hot_and_scan_kernels(run_in_interpreter):
    run_in_interpreter("test_two_hot.py", "test_two_hot_gpu.py", "test_scan_triton.py")


def test_a_call_that_cannot_run_says_why():
    with pytest.raises(RuntimeError, match="need a CUDA device and logits is on cpu"):
        kernels.two_hot_mean(torch.zeros(2, 5), Bins(-1.0, 1.0, 5), backend="triton")
    with pytest.raises(RuntimeError, match="at most 4096 bins, got 5000"):
        kernels.two_hot_mean(torch.zeros(2, 5000), Bins(-1.0, 1.0, 5000), backend="triton")
    sequence, rates = torch.zeros(2, 3, 4), torch.zeros(3, 300, dtype=torch.float64)
    shared = torch.zeros(2, 300, 4)
    with pytest.raises(RuntimeError, match=r"CUDA device and u is on cpu.* float64; .*at most 256 .*got 300"):
        kernels.selective_scan(sequence, sequence, rates, shared, shared, backend="triton")


def test_rows_that_tensors_lay_out_alike_are_one_axis_and_what_is_shared_is_not_copied():
    logits = torch.empty(24, 127, 4, 7, 128)
    target = torch.empty(24, 127, 1, 7).expand(24, 127, 4, 7)
    mask = torch.empty(24, 127, 1, 1).expand(24, 127, 4, 7)
    axes = row_axes(logits.shape[:-1], (logits, target, None, torch.empty(24, 127, 4, 7)))
    assert axes.sizes == (24 * 127, 4, 7)
    assert axes.strides == ((4 * 7 * 128, 7 * 128, 128), (7, 0, 1), (0, 0, 0), (28, 7, 1))
    assert row_axes(logits.shape[:-1], (logits, mask, target)).count == 3
    assert row_axes(logits.shape[:-1], (logits,)).sizes == (1, 1, 24 * 127 * 4 * 7)
    critics_first = torch.empty(4, 24, 127, 7, 128).movedim(0, 2)
    assert row_axes(logits.shape[:-1], (critics_first, target)).sizes == (1, 4, 24 * 127 * 7)
    shared = torch.empty(24, 127, 1, 1).expand(24, 127, 4, 7)
    axes = row_axes(logits.shape[:-1], (logits, target, shared))
    assert [axes.evenly_spaced(i) for i in range(3)] == [True, False, False]
    assert row_axes((1,), (torch.empty(1, 5), torch.empty(()).expand(1))).evenly_spaced(0)
    assert not row_axes(logits.shape[:-1], (logits[..., ::2, :], target)).evenly_spaced(0)
