"""Action distributions: golden numbers, independent formulas, and what clipping must not break.

Shapes of the golden cases: batch 2, length 4, discounts 3, action width.
"""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, Distribution, OneHotCategorical

from amago.nets.policy_dists import (
    GMM,
    Beta,
    Discrete,
    DiscreteLikeContinuous,
    Multibinary,
    MultiDiscrete,
    TanhGaussian,
)


@pytest.fixture(autouse=True)
def validated():
    """Distributions validate their arguments, also after torch.compile has switched that off for the process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def test_discrete_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("dist_discrete")
    bounds = {key: case.args[key] for key in ("clip_prob_low", "clip_prob_high")}
    dist = Discrete(case.args["d_action"], **bounds)(case.tensors["vec"])
    assert_forward(dist.probs, case.tensors["probs"])
    assert_forward(dist.log_prob(case.tensors["action"]), case.tensors["log_prob"])
    assert_forward(dist.entropy(), case.tensors["entropy"])


def test_tanh_gaussian_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("dist_tanhgaussian")
    dist = TanhGaussian(case.args["d_action"])(case.tensors["vec"])
    assert_forward(dist.std, case.tensors["std"])
    assert_forward(dist.mean, case.tensors["mean"])
    assert_forward(dist.log_prob(case.tensors["action"]), case.tensors["log_prob"])


def test_gmm_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("dist_gmm")
    dist = GMM(case.args["d_action"], gmm_modes=case.args["gmm_modes"])(case.tensors["vec"])
    assert_forward(dist.mean, case.tensors["mean"])
    assert_forward(dist.log_prob(case.tensors["action"]), case.tensors["log_prob"])


def test_beta_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("dist_beta")
    dist = Beta(case.args["d_action"])(case.tensors["vec"])
    assert_forward(dist.mean, case.tensors["mean"])
    assert_forward(dist.log_prob(case.tensors["action"]), case.tensors["log_prob"])


def test_multibinary_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("dist_multibinary")
    dist = Multibinary(case.args["d_action"])(case.tensors["vec"])
    assert_forward(dist.log_prob(case.tensors["action"]), case.tensors["log_prob"])


@pytest.mark.parametrize(
    ("make", "differentiable", "discrete", "width"),
    [
        (Discrete, True, True, 6),
        (TanhGaussian, True, False, 12),
        (Beta, True, False, 12),
        (GMM, False, False, 5 * 13),
        (Multibinary, False, False, 6),
        (MultiDiscrete.with_sizes((2, 4)), True, False, 6),
    ],
)
def test_kind_and_input_dimension_of_every_distribution(make, differentiable, discrete, width):
    output = make(d_action=6)
    assert output.actions_differentiable is differentiable
    assert output.is_discrete is discrete
    assert output.input_dimension == width


@pytest.mark.parametrize("make", [TanhGaussian, Beta, GMM, Multibinary, MultiDiscrete.with_sizes((2, 3))])
def test_samples_are_vectors_whose_log_prob_is_finite(make):
    torch.manual_seed(0)
    output = make(d_action=5)
    dist = output(3.0 * torch.randn(2, 4, 3, output.input_dimension))
    samples = dist.sample((7,))
    assert samples.shape == (7, 2, 4, 3, 5)
    assert samples.abs().max() <= 1.0
    assert dist.log_prob(samples).isfinite().all()
    assert dist.log_prob(output.action_from_buffer(torch.full((2, 4, 3, 5), 4.0))).isfinite().all()


def clipped_as_in_the_fault(vec, low, high):
    """The fault: a fixed floor for any number of actions, and clamp's gradient of zero."""
    probs = torch.softmax(vec, -1).clamp(low, high)
    return Categorical(probs=probs / probs.sum(-1, keepdim=True))


def test_a_favourite_among_a_thousand_actions_gets_nearly_all_the_mass():
    vec = torch.zeros(1000)
    vec[3] = 30.0
    dist = Discrete(1000)(vec)
    assert dist.probs[3] > 0.98
    assert dist.probs.min() > 0.0
    assert dist.probs.sum().item() == pytest.approx(1.0)
    assert clipped_as_in_the_fault(vec, 0.001, 0.99).probs[3] < 0.5


@pytest.mark.parametrize(("num_actions", "low"), [(2, 0.001), (18, 0.02), (100, 0.001), (256, 0.001)])
def test_the_floor_is_the_given_one_up_to_256_actions(num_actions, low):
    torch.manual_seed(0)
    vec = 6.0 * torch.randn(5, num_actions)
    fixed = clipped_as_in_the_fault(vec, low, 0.99)
    torch.testing.assert_close(Discrete(num_actions, clip_prob_low=low)(vec).probs, fixed.probs)


def test_a_clipped_action_keeps_the_gradient_of_the_unclipped_policy():
    vec = torch.tensor([12.0, 0.0, 1.0, -1.0], requires_grad=True)
    dist = Discrete(4)(vec)
    assert dist.probs[1] == dist.probs[3]
    dist.log_prob(torch.tensor(1)).backward()
    expected = F.one_hot(torch.tensor(1), 4) - torch.softmax(vec.detach(), -1)
    torch.testing.assert_close(vec.grad, expected)
    faulty = torch.tensor([12.0, 0.0, 1.0, -1.0], requires_grad=True)
    clipped_as_in_the_fault(faulty, 0.001, 0.99).log_prob(torch.tensor(1)).backward()
    assert not faulty.grad.any()


def test_softened_one_hot_actions_are_judged_as_the_action_that_they_mean():
    """Actions of a batch are clamped to ±0.999, so one-hot vectors arrive softened."""
    torch.manual_seed(0)
    vec = torch.randn(4, 3)
    index = torch.tensor([2, 0, 1, 1])
    soft = F.one_hot(index, 3).float().clamp(-0.999, 0.999)
    categorical = Discrete(3)(vec)
    logp = DiscreteLikeContinuous(categorical).log_prob(soft)
    torch.testing.assert_close(logp, categorical.log_prob(index).unsqueeze(-1))
    with pytest.raises(ValueError, match="to be within the support"):
        OneHotCategorical(probs=categorical.probs).log_prob(soft)


def test_discrete_like_continuous_samples_one_hots_in_proportion():
    torch.manual_seed(0)
    dist = DiscreteLikeContinuous(Discrete(3)(torch.tensor([1.0, 0.0, 0.5])))
    for samples in (dist.sample((20_000,)), dist.rsample((20_000,))):
        assert samples.shape == (20_000, 3)
        torch.testing.assert_close(samples.sum(-1), torch.ones(20_000))
        torch.testing.assert_close(samples.mean(0), dist.probs, atol=0.015, rtol=0.0)


def test_a_distribution_type_with_sizes_can_be_pickled():
    make = pickle.loads(pickle.dumps(MultiDiscrete.with_sizes([2, 3])))
    assert make(d_action=5).sizes == (2, 3)


def test_a_nan_policy_gives_a_nan_log_prob():
    """Whoever optimises counts and skips non-finite losses; an exception here would end the run instead."""
    for make in (Discrete, TanhGaussian, Beta, GMM, Multibinary, MultiDiscrete.with_sizes((2, 2))):
        output = make(d_action=4)
        dist = output(torch.full((3, output.input_dimension), float("nan")))
        action = torch.zeros(3, dtype=torch.long) if output.is_discrete else torch.zeros(3, 4)
        assert dist.log_prob(action).isnan().any()


def test_low_precision_parameters_give_float32_distributions():
    for make in (Discrete, TanhGaussian, Beta, GMM, Multibinary):
        output = make(d_action=3)
        dist = output(torch.zeros(2, output.input_dimension, dtype=torch.bfloat16))
        action = torch.zeros(2, dtype=torch.long) if output.is_discrete else torch.zeros(2, 3)
        assert dist.log_prob(action).dtype == torch.float32


def test_buffer_actions_are_clamped_to_the_range_of_the_distribution():
    action = torch.tensor([-4.0, -0.5, 0.5, 4.0])
    assert TanhGaussian(4).action_from_buffer(action).tolist() == [-1.0, -0.5, 0.5, 1.0]
    assert MultiDiscrete(4, (2, 2)).action_from_buffer(action).tolist() == [0.0, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Discrete(0), "d_action must be at least 1, got 0"),
        (lambda: Discrete(3, clip_prob_low=0.9, clip_prob_high=0.5), "clip_prob_low=0.9"),
        (lambda: MultiDiscrete(5, (2, 2)), r"add up to d_action=5, got \(2, 2\)"),
        (lambda: MultiDiscrete(2, (2, 0)), "sizes must be .* at least 1"),
        (lambda: TanhGaussian(2, std_low=3.0, std_high=1.0), "std_high must be above std_low=3.0, got 1.0"),
        (
            lambda: TanhGaussian(2, clip_actions_on_log_prob=(-1.0, 1.0)),
            r"-1 < low < high < 1.*\(-1.0, 1.0\)",
        ),
        (lambda: GMM(2, gmm_modes=0), "gmm_modes must be at least 1, got 0"),
        (lambda: Beta(2, alpha_low=-1.0), "alpha_low must be above 0"),
        (lambda: TanhGaussian(3)(torch.zeros(2, 3)), r"must end in 6 numbers.*\(2, 3\)"),
        (lambda: DiscreteLikeContinuous(Discrete(2)(torch.zeros(2)), 0.0), "must be positive, got 0.0"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
