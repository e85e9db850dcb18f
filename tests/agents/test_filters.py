"""Filters of imitation: golden numbers and the points that define their shape."""

import pytest
import torch

from amago.agent import Multigammas, binary_filter, exp_filter, leaky_relu_filter


@pytest.mark.parametrize(
    ("key", "fn"), [("binary", binary_filter), ("exp", exp_filter), ("leaky", leaky_relu_filter)]
)
def test_defaults_equal_the_golden_numbers(golden, key, fn):
    t = {name: torch.from_numpy(value) for name, value in golden("filters").arrays.items()}
    torch.testing.assert_close(fn(t["adv"]), t[key], atol=1e-6, rtol=1e-5)


def test_the_binary_filter_takes_a_threshold():
    adv = torch.tensor([-1.0, 0.4, 0.5, 0.6])
    assert binary_filter(adv, threshold=0.5).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_the_exponential_filter_clips_advantages_before_and_weights_after():
    adv = torch.tensor([-5.0, 0.0, 5.0])
    clipped = exp_filter(adv, beta=2.0, clip_adv_low=-1.0, clip_adv_high=1.0)
    torch.testing.assert_close(clipped, torch.exp(2.0 * torch.tensor([-1.0, 0.0, 1.0])))
    assert exp_filter(adv, clip_weights_low=0.5, clip_weights_high=2.0).tolist() == [0.5, 1.0, 2.0]
    assert exp_filter(torch.tensor([-60.0]), clip_weights_low=None).item() == pytest.approx(8.7565e-27)


def test_the_leaky_filter_is_bounded():
    weights = leaky_relu_filter(torch.tensor([-1e6, 1e6]))
    torch.testing.assert_close(weights, torch.tensor([1e-7, 10.0]))


def test_a_discount_beyond_one_is_an_error():
    with pytest.raises(ValueError, match=r"Multigammas: discrete must .* at most 1, got \[0.5, 1.5\]"):
        Multigammas(discrete=[0.5, 1.5])
