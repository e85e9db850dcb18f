"""PopArt: golden numbers, invariance of outputs, and values that must not enter the statistics."""

import pytest
import torch

from amago.nets.actor_critic import PopArtLayer


def test_four_updates_equal_the_golden_numbers(golden):
    case = golden("popart")
    t = {key: torch.from_numpy(value) for key, value in case.arrays.items()}
    layer = PopArtLayer(case.case["gammas"], beta=case.case["beta"], init_nu=case.case["init_nu"])
    for i in range(4):
        layer.update_stats(t["vals"][i], mask=t["mask"][i])
        close = {"atol": 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(layer.normalize_values(t["vals"][i]), t[f"normvals_{i}"], **close)
        torch.testing.assert_close(layer(t["q"]), t[f"norm_{i}"], **close)
        torch.testing.assert_close(layer(t["q"], normalized=False), t[f"denorm_{i}"], **close)
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(value, t[f"state.{name}"], atol=1e-4, rtol=1e-4)


def test_outputs_keep_their_meaning_when_statistics_move():
    torch.manual_seed(0)
    layer = PopArtLayer([0.9, 0.99], beta=0.3).double()
    x = torch.randn(4, 5, 3, 2, 1, dtype=torch.float64)
    before = layer(x, normalized=False)
    for scale in (1.0, 50.0, 1e-2):
        values = scale * torch.randn(4, 5, 1, 2, 1, dtype=torch.float64) + 7.0
        layer.update_stats(values, mask=torch.ones_like(values))
        torch.testing.assert_close(layer(x, normalized=False), before)


def unguarded_update(layer, val, mask):
    """The fault: a mean over nothing, or over a NaN, goes straight into the statistics."""
    step = layer.beta / (1.0 - (1.0 - layer.beta) ** (layer._t + 1.0))
    for statistic, numbers in ((layer.mu, val), (layer.nu, val**2)):
        mean = (numbers * mask).sum((0, 1, 2)) / mask.sum((0, 1, 2))
        statistic.copy_((1.0 - step) * statistic + step * mean)


def finite(layer):
    return all(torch.isfinite(buffer).all() for buffer in layer.buffers())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e25])
def test_a_value_that_is_not_finite_or_has_no_finite_square_does_not_enter_the_statistics(value):
    values = torch.randn(2, 3, 1, 2, 1)
    values[0, 0] = value
    mask = torch.ones_like(values)
    faulty = PopArtLayer(2)
    unguarded_update(faulty, values, mask)
    assert not finite(faulty)

    layer, without = PopArtLayer(2), PopArtLayer(2)
    layer.update_stats(values, mask=mask)
    mask[0, 0] = 0.0
    without.update_stats(torch.nan_to_num(values), mask=mask)
    assert finite(layer)
    torch.testing.assert_close(layer.state_dict(), without.state_dict())


def test_a_batch_without_a_real_step_leaves_the_statistics_alone():
    values = torch.randn(2, 3, 1, 2, 1)
    mask = torch.zeros_like(values)
    faulty = PopArtLayer(2)
    unguarded_update(faulty, values, mask)
    assert not finite(faulty)

    layer = PopArtLayer(2)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.update_stats(values, mask=mask)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_disabled_it_is_the_identity_and_still_has_its_buffers():
    layer = PopArtLayer(3, enabled=False)
    x = torch.randn(2, 4, 2, 3, 1)
    layer.update_stats(x, mask=torch.ones_like(x))
    for out in (layer(x), layer(x, normalized=False), layer.normalize_values(x), layer.denormalize_values(x)):
        assert out is x
    assert sorted(layer.state_dict()) == ["_t", "b", "mu", "nu", "w"]


def test_a_step_size_out_of_range_is_an_error():
    with pytest.raises(ValueError, match=r"beta must be above 0, got 0\.0"):
        PopArtLayer(2, beta=0.0)
