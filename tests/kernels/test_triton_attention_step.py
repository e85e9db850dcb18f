"""Triton's kernels of `attention_step` without a GPU: its interpreter runs them."""

from amago.kernels.triton_runtime import INTERPRETED

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"


def test_the_interpreter_runs_the_kernels_of_a_step(run_in_interpreter):
    run_in_interpreter("test_attention_step_gpu.py")
