"""Random critic subsets and target networks."""

import pytest
import torch

from amago.agent.losses import random_critic_subset


def with_replacement(values, size, reduce):
    """The fault: draws that may take a critic twice."""
    drawn = torch.randint(values.shape[-3], (*values.shape[:-3], size, *values.shape[-2:]))
    return values.gather(-3, drawn).mean(dim=-3, keepdim=True)


def assert_pairs_are_different_and_equally_likely(draw):
    """Draws of 2 of 4 critics, told apart by the sum of their values: powers of 4."""
    torch.manual_seed(0)
    powers = (4.0 ** torch.arange(4)).view(4, 1, 1).expand(20000, 4, 1, 1)
    sums = (2.0 * draw(powers, 2, "mean")).flatten().long()
    counts = [int((sums == 4**i + 4**j).sum()) for i in range(4) for j in range(i)]
    assert sum(counts) == 20000, "a critic was drawn twice"
    assert all(abs(count - 20000 / 6) < 250 for count in counts)


def test_a_subset_has_different_critics_each_equally_often():
    assert_pairs_are_different_and_equally_likely(random_critic_subset)


def test_drawing_with_replacement_would_be_noticed():
    with pytest.raises(AssertionError, match="a critic was drawn twice"):
        assert_pairs_are_different_and_equally_likely(with_replacement)


def test_draws_differ_between_steps_and_discounts():
    torch.manual_seed(0)
    ids = torch.arange(4.0).view(1, 1, 4, 1, 1).expand(3, 50, 4, 5, 1)
    drawn = random_critic_subset(ids, 1, "min").flatten(0, 1)[..., 0, :, 0]  # (150, 5)
    assert len(drawn.unique(dim=0)) > 50
    assert all(len(row.unique()) > 1 for row in drawn[:10])


@pytest.mark.parametrize(("reduce", "expected"), [("min", 1.0), ("mean", 2.0)])
def test_all_critics_need_no_draw(reduce, expected):
    values = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    assert random_critic_subset(values, 3, reduce).item() == expected


@pytest.mark.parametrize("size", [0, 4])
def test_a_subset_that_does_not_exist_is_an_error(size):
    with pytest.raises(ValueError, match=f"between 1 and the number of critics, 3, got {size}"):
        random_critic_subset(torch.zeros(1, 3, 1, 1), size, "min")
