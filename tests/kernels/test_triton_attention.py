"""Triton's kernels of `attention` without a GPU: interpreted, and compiled for machines that are not here."""

import pytest
import torch

from amago import kernels
from amago.kernels.attention import triton_kernels
from amago.kernels.triton_runtime import INTERPRETED

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"


def test_the_interpreter_runs_the_attention_kernels(run_in_interpreter):
    run_in_interpreter("test_attention_triton.py")


TENSORS = ("q", "k", "v", "out", "grad", "grad_q", "grad_k", "grad_v")
NUMBERS = ("sink_bias", "clip", "scale", "dropout")


@pytest.mark.parametrize("capability", [80, 90])
def test_attention_kernels_compile_to_use_tensor_cores(compile_for_gpu, capability):
    arguments = dict.fromkeys(TENSORS, "*bf16") | dict.fromkeys(("lse", "delta"), "*fp32")
    arguments |= dict.fromkeys(NUMBERS, "fp32") | {"lengths": None, "seed": None}
    arguments |= dict.fromkeys(("q3", "k3", "v3", "out3", "grad3"), 1)
    arguments |= {"M": 64, "D": 24, "W": 32, "PRECISION": "ieee"}
    arguments |= dict.fromkeys(("CAUSAL", "WINDOW", "BIAS", "CLIP"), True)
    plain = {"WINDOW": False, "BIAS": False, "CLIP": False}
    everything = {"lengths": "*i32", "seed": "*i64"}
    for kernel, options in (
        (triton_kernels._forward, plain),
        (triton_kernels._forward, everything),
        (triton_kernels._keys_backward, everything),
        (triton_kernels._queries_backward, everything),
    ):
        assert "mma" in compile_for_gpu(kernel, capability, arguments | options)
    compile_for_gpu(triton_kernels._through_output, capability, arguments)


def test_a_call_of_attention_that_cannot_run_says_why():
    wide = torch.zeros(1, 2, 1, 136)
    with pytest.raises(RuntimeError, match="need a CUDA device and q is on cpu; it takes heads up to 128"):
        kernels.attention(wide, wide, wide, backend="triton")
