"""Triton's kernels without a GPU: its interpreter runs them, and its compiler takes them for other machines."""

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.scan import triton_kernels as scan
from amago.kernels.triton_runtime import INTERPRETED
from amago.kernels.two_hot import triton_kernels as two_hot
from amago.kernels.two_hot.rows import row_axes

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"
FLOATS = ("target", "weight", "loss", "grad", "value")
NUMBERS = ("low", "high", "start", "width", "sharpness")


def test_the_interpreter_runs_the_two_hot_and_scan_kernels(run_in_interpreter):
    run_in_interpreter("test_two_hot.py", "test_two_hot_gpu.py", "test_scan_triton.py")


@pytest.mark.parametrize(("capability", "dtype"), [(80, "*bf16"), (90, "*bf16"), (90, "*fp32")])
def test_two_hot_kernels_compile_with_loads_and_stores_of_sixteen_bytes(compile_for_gpu, capability, dtype):
    arguments = dict.fromkeys(FLOATS, "*fp32") | {"mask": "*i1"} | dict.fromkeys(NUMBERS, "fp32")
    arguments |= {"logits": dtype, "out": dtype, "logits_bin": 1, "out_bin": 1}
    arguments |= {"N": 128, "W": 128, "R": 32, "AXES": 3, "SYMLOG": True}
    for kernel, options in (
        (two_hot._cross_entropy, {"GAUSS": False}),
        (two_hot._cross_entropy, {"GAUSS": True, "mask": None, "weight": None}),
        (two_hot._cross_entropy_backward, {"GAUSS": False}),
        (two_hot._cross_entropy_backward, {"GAUSS": True, "mask": None, "weight": None}),
        (two_hot._mean, {}),
        (two_hot._mean_backward, {}),
    ):
        ptx = compile_for_gpu(kernel, capability, arguments | options)
        assert "ld.global.v4.b32" in ptx
        assert "backward" not in kernel.__name__ or "st.global.v4.b32" in ptx


SEQUENCES = ("u", "delta", "B", "C", "z", "grad_y", "y", "grad_u", "grad_delta", "grad_z")
STATES = ("A", "D", "bias", "initial", "last", "starts", "grad_last", "workspace", "grad_initial")
PARTS = ("part_A", "part_B", "part_C", "part_D", "part_bias")


@pytest.mark.parametrize(("capability", "dtype"), [(80, "*bf16"), (90, "*bf16"), (90, "*fp32")])
@pytest.mark.parametrize("states", [16, 64])
def test_scan_kernels_compile(compile_for_gpu, states, capability, dtype):
    arguments = dict.fromkeys(SEQUENCES, dtype) | dict.fromkeys((*STATES, *PARTS), "*fp32")
    arguments |= dict.fromkeys(("u2", "delta2", "B2", "C2", "z2", "y2", "A1"), 1)
    arguments |= {"SOFTPLUS": True, "SAVE": True, "T": 16, "E": 8, "N": states, "W": states}
    plain = {"z": None, "D": None, "bias": None, "initial": None, "SOFTPLUS": False, "SAVE": False, "rows": 1}
    for kernel in (scan._forward, scan._backward):
        for options in ({}, plain):
            compile_for_gpu(kernel, capability, arguments | options, warps=1)


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
