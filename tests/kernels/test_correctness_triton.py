"""The matrix of backends and checks for Triton's kernels, in its interpreter on the CPU.

The tests of each operation compile them with torch there.
"""


def test_the_interpreter_runs_the_matrix(run_in_interpreter):
    run_in_interpreter("test_correctness.py", "test_correctness_random.py", "test_correctness_autograd.py")
