"""n-step returns: golden numbers, and values computed by hand."""

import pytest
import torch

from amago.agent import nstep_return


@pytest.mark.parametrize("n", [1, 3, 5])
def test_real_steps_equal_the_golden_numbers(golden, n):
    t = {key: torch.from_numpy(value) for key, value in golden(f"nstep_{n}").arrays.items()}
    ours = nstep_return(t["r"], t["d"], t["q"], t["gamma"], n, t["mask"])
    real = t["mask"].bool().expand_as(ours)
    torch.testing.assert_close(ours[real], t["y"][real], atol=1e-5, rtol=1e-4)


def test_less_than_one_step_is_an_error():
    x = torch.zeros(1, 2, 1, 1, 1)
    with pytest.raises(ValueError, match="n must be at least 1 step, got 0"):
        nstep_return(x, x, x, torch.ones(1, 1), 0, x)
