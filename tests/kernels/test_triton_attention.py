"""Triton's kernels of `attention` without a GPU: its interpreter runs them."""

import pytest
import torch

from amago import kernels
from amago.kernels.triton_runtime import INTERPRETED

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"


def test_the_interpreter_runs_the_attention_kernels(run_in_interpreter):
    run_in_interpreter("test_attention_triton.py")


def test_a_call_of_attention_that_cannot_run_says_why():
    wide = torch.zeros(1, 2, 1, 136)
    with pytest.raises(RuntimeError, match="need a CUDA device and q is on cpu; it takes heads up to 128"):
        kernels.attention(wide, wide, wide, backend="triton")
