"""Critics that classify returns, against the golden numbers and formulas in float64."""

import math

import gin
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amago.nets.actor_critic import NCriticsTwoHot

GAMMAS = torch.tensor([0.1, 0.9, 0.999])
GOLDEN = ["twohot_twohot_symlog", "twohot_twohot_linear", "twohot_hlgauss_symlog"]
SETTINGS = ["state_dim", "action_dim", "num_critics", "d_hidden", "n_layers", "min_return", "max_return"]
SETTINGS += ["output_bins", "use_symlog", "label_type", "init_value"]


def build(case):
    given = {name: case[name] for name in SETTINGS if name in case}
    return NCriticsTwoHot(discrete=False, gammas=torch.tensor(case["gammas"]), **given)


def make(state_dim=5, action_dim=3, num_critics=2, gammas=GAMMAS, discrete=False, **kwargs):
    kwargs = {"d_hidden": 8, "output_bins": 12, **kwargs}
    return NCriticsTwoHot(state_dim, action_dim, gammas, discrete, num_critics, **kwargs)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_critic_equals_the_golden_numbers(golden, name):
    loaded = golden(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in loaded.arrays.items()}
    critic = build(loaded.case)
    state = {key.removeprefix("state."): value for key, value in t.items() if key.startswith("state.")}
    critic.load_state_dict(state, strict=True)
    dist = critic(t["state"], t["action"])
    close = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(critic.bins.values, t["bin_vals"], **close)
    torch.testing.assert_close(dist.logits, t["logits"], **close)
    # A value is the exponential of a mean of logarithms: rounding grows with it.
    torch.testing.assert_close(critic.bin_dist_to_raw_vals(dist), t["values"], atol=1e-4, rtol=1e-4)
    # The golden labels of a normal distribution fade away beyond the support; ours are those of its end.
    inside = torch.ones_like(t["target"][..., 0], dtype=torch.bool)
    if critic.label_type == "hlgauss":
        inside = (t["target"][..., 0] >= critic.bins.low) & (t["target"][..., 0] <= critic.bins.high)
    labels = critic.raw_vals_to_labels(t["target"])
    torch.testing.assert_close(labels[inside], t["labels"][inside], **close)
    loss = critic.cross_entropy(dist, t["target"])
    assert loss.shape == (2, *t["loss"].shape, 1)
    rows = inside.expand(t["loss"].shape)
    torch.testing.assert_close(loss[0, ..., 0][rows], t["loss"][rows], **close)


def test_an_initial_value_sets_the_golden_bias(golden):
    loaded = golden("twohot_init_value")
    critic = build(loaded.case)
    bias = torch.from_numpy(loaded.arrays["output_bias"])
    torch.testing.assert_close(critic.net.output_layer.bias.data, bias, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(("init_value", "symlog"), [(0.0, True), (-40.0, True), (90.0, False), (3.5, False)])
def test_a_new_critic_predicts_about_its_initial_value(init_value, symlog):
    torch.manual_seed(0)
    plain = make(min_return=-200.0, max_return=300.0, output_bins=256, use_symlog=symlog)
    torch.manual_seed(0)
    critic = make(
        min_return=-200.0, max_return=300.0, output_bins=256, use_symlog=symlog, init_value=init_value
    )
    state, action = torch.zeros(1, 4, 5), torch.zeros(1, 1, 4, 3, 3)
    values = critic.bin_dist_to_raw_vals(critic(state, action))
    torch.testing.assert_close(
        values, torch.full_like(values, init_value), atol=2.0, rtol=0.2 if symlog else 0.05
    )
    differing = [
        name
        for (name, a), (_, b) in zip(plain.named_parameters(), critic.named_parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    assert differing == ["net.output_layer.bias"]


@pytest.mark.parametrize("label_type", ["twohot", "hlgauss"])
def test_the_loss_is_the_cross_entropy_with_the_labels_that_the_critic_states(label_type):
    torch.manual_seed(0)
    critic = make(label_type=label_type, min_return=-50.0, max_return=50.0)
    dist = critic(torch.randn(2, 4, 5), torch.randn(3, 2, 4, 3, 3))
    target = 80 * torch.randn(2, 4, 1, 3, 1)
    labels = critic.raw_vals_to_labels(target)
    assert labels.shape == (2, 4, 1, 3, 12)
    torch.testing.assert_close(labels.sum(-1), torch.ones(2, 4, 1, 3))
    expected = -(labels * dist.logits).sum(-1, keepdim=True)
    torch.testing.assert_close(critic.cross_entropy(dist, target), expected, atol=1e-4, rtol=1e-5)


def test_overridden_labels_are_used_by_the_loss():
    class Nearest(NCriticsTwoHot):
        def raw_vals_to_labels(self, raw_td_target):
            place = self.bins.position(raw_td_target.squeeze(-1)).round().long()
            return F.one_hot(place, self.bins.n).float()

    torch.manual_seed(0)
    critic = Nearest(5, 3, GAMMAS, False, 2, d_hidden=8, output_bins=12)
    dist = critic(torch.randn(2, 4, 5), torch.randn(1, 2, 4, 3, 3))
    target = 10 * torch.randn(2, 4, 1, 3, 1)
    place = critic.bins.position(target[..., 0]).round().long()
    expected = -dist.logits[0].gather(-1, place.expand(-1, -1, 2, -1).unsqueeze(-1))
    torch.testing.assert_close(critic.cross_entropy(dist, target)[0], expected)


def test_the_support_is_wide_by_default_and_set_by_gin():
    assert (make().bins.low, make().bins.high) == (-100_000.0, 100_000.0)
    gin.bind_parameter("amago.nets.actor_critic.NCriticsTwoHot.min_return", -3.0)
    gin.bind_parameter("NCriticsTwoHot.use_symlog", False)
    critic = make(max_return=5.0)
    torch.testing.assert_close(critic.bins.values, torch.linspace(-3.0, 5.0, 12))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"init_value": 11.0, "max_return": 10.0}, "init_value must lie between min_return=-100000.0 and"),
        ({"init_value": math.nan}, "init_value must be a number"),
        (
            {"min_return": 5.0, "max_return": 5.0},
            r"min_return must be smaller than max_return, got 5\.0 and 5\.0",
        ),
        ({"output_bins": 1}, "output_bins must be at least 2, got 1"),
        ({"label_type": "one-hot"}, "label_type must be one of 'twohot', 'hlgauss', got 'one-hot'"),
        ({"sigma": -1.0}, r"sigma must be above 0, got -1\.0"),
    ],
)
def test_settings_out_of_range_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)


class LargeTensors(TorchDispatchMode):
    """The dtypes of new tensors of at least `numel` elements, without views."""

    def __init__(self, numel):
        super().__init__()
        self.numel = numel
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
        for x in tree_leaves(out):
            if torch.is_tensor(x) and x.numel() >= self.numel:
                storage = x.untyped_storage().data_ptr()
                if storage not in given:
                    self.made.setdefault(storage, x)  # kept, so that the storage is not reused
        return out


def large_tensors_of_the_loss(cls, label_type="twohot", bins=128):
    """The dtypes of tensors as large as dense labels that the loss and its gradient make."""
    critics = cls(7, 3, [0.5, 0.9], False, 4, d_hidden=8, output_bins=bins, label_type=label_type)
    dist = critics(torch.randn(1, 200, 7), torch.rand(1, 1, 200, 2, 3))
    target = 10 * torch.randn(1, 200, 1, 2, 1)
    with LargeTensors(target.numel() * bins) as large:
        torch.autograd.grad(critics.cross_entropy(dist, target).sum(), dist.raw_logits)
    return [x.dtype for x in large.made.values()]


class DenseLabels(NCriticsTwoHot):
    """The fault: two one-hot vectors of int64 for every target."""

    def raw_vals_to_labels(self, raw_td_target):
        position = self.bins.position(raw_td_target.squeeze(-1))
        low = position.floor().long().clamp(max=self.bins.n - 2)
        above = (position - low).unsqueeze(-1)
        return F.one_hot(low, self.bins.n) * (1 - above) + F.one_hot(low + 1, self.bins.n) * above


@pytest.mark.parametrize("label_type", ["twohot", "hlgauss"])
def test_the_loss_makes_a_gradient_and_no_labels(label_type):
    assert large_tensors_of_the_loss(NCriticsTwoHot, label_type) == [torch.float32]
    assert large_tensors_of_the_loss(DenseLabels).count(torch.int64) >= 2
