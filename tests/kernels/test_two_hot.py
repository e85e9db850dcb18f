"""Two-hot and HL-Gauss losses and expected values against formulas written out in float64, on every backend."""

import math

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED

# Tensors are on the CPU, where Triton's kernels run in its interpreter only (see test_interpreter.py).
BACKENDS = [
    name for name in kernels.available_backends()["two_hot_cross_entropy"] if name != "triton" or INTERPRETED
]
LOSSES = {"two-hot": kernels.two_hot_cross_entropy, "hl-gauss": kernels.hl_gauss_cross_entropy}
# In float32 a target's place among the bins is known to some 1e-5 of a bin; the loss is that times a logit.
LOSS = {"atol": 2e-4, "rtol": 1e-5}
GOLDEN = ["twohot_twohot_symlog", "twohot_twohot_linear", "twohot_hlgauss_symlog"]


def transformed(value, bins):
    return math.copysign(math.log1p(abs(value)), value) if bins.symlog else value


def support(bins):
    low, high = transformed(bins.low, bins), transformed(bins.high, bins)
    return [low + (high - low) * j / (bins.n - 1) for j in range(bins.n)]


def labels(kind, value, bins, sigma=0.75):
    """The label of one return as a list of floats: an independent formula, one bin at a time."""
    points = support(bins)
    width = points[1] - points[0]
    x = min(max(transformed(value, bins), points[0]), points[-1])
    if kind == "two-hot":
        return [max(0.0, 1.0 - abs(x - p) / width) for p in points]

    def cdf(edge):
        return 0.5 * (1.0 + math.erf((edge - x) / (sigma * width * math.sqrt(2.0))))

    total = cdf(points[-1] + width / 2) - cdf(points[0] - width / 2)
    return [(cdf(p + width / 2) - cdf(p - width / 2)) / total for p in points]


def loss_and_gradient(kind, logits, target, bins, sigma=0.75):
    """Both in float64, every row of its own."""
    logits = logits.detach().double()
    target = target.double().expand(logits.shape[:-1])
    dense = torch.tensor([labels(kind, y, bins, sigma) for y in target.flatten().tolist()]).double()
    dense = dense.view(logits.shape)
    log_probs = logits - logits.logsumexp(-1, keepdim=True)
    return -(dense * log_probs).sum(-1), log_probs.exp() - dense


def random_case(seed, dtype=torch.float32):
    """Logits of random sizes, targets that the critics share, some beyond the support, and their bins."""
    g = torch.Generator().manual_seed(seed)
    b, t, c, k, n = (int(torch.randint(1, high, (), generator=g)) for high in (5, 9, 5, 4, 150))
    bins = Bins(-30.0 - 10 * seed, 50.0 * (seed + 1), n + 1, symlog=seed % 2 == 0)
    logits = 3 * torch.randn(b, t, c, k, bins.n, generator=g, dtype=torch.float64).to(dtype)
    target = 60 * torch.randn(b, t, 1, k, generator=g, dtype=torch.float64).to(torch.float32)
    return logits, target, bins


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_and_gradient_equal_the_formula(backend, kind, seed):
    logits, target, bins = random_case(seed)
    logits.requires_grad_()
    loss = LOSSES[kind](logits, target, bins, backend=backend)
    upstream = torch.randn(loss.shape, generator=torch.Generator().manual_seed(seed))
    loss.backward(upstream)
    expected, gradient = loss_and_gradient(kind, logits, target, bins)
    torch.testing.assert_close(loss.double(), expected, **LOSS)
    torch.testing.assert_close(
        logits.grad.double(), gradient * upstream.double().unsqueeze(-1), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0, 40.0])
def test_hl_gauss_takes_any_width(backend, sigma):
    logits, target, bins = random_case(2)
    logits.requires_grad_()
    loss = kernels.hl_gauss_cross_entropy(logits, target, bins, sigma=sigma, backend=backend)
    loss.sum().backward()
    expected, gradient = loss_and_gradient("hl-gauss", logits, target, bins, sigma)
    torch.testing.assert_close(loss.double(), expected, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(logits.grad.double(), gradient, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_mean_and_its_gradient_equal_the_formula(backend, seed):
    logits, _, bins = random_case(seed)
    logits.requires_grad_()
    value = kernels.two_hot_mean(logits, bins, backend=backend)
    upstream = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
    value.backward(upstream)
    probs = logits.detach().double().softmax(-1)
    points = torch.tensor(support(bins)).double()
    mean = (probs * points).sum(-1)
    expected = mean.sign() * (mean.abs().exp() - 1) if bins.symlog else mean
    slope = mean.abs().exp() if bins.symlog else torch.ones_like(mean)
    gradient = (slope * upstream.double()).unsqueeze(-1) * probs * (points - mean.unsqueeze(-1))
    torch.testing.assert_close(value.double(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits.grad.double(), gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GOLDEN)
def test_equals_the_golden_numbers(golden, name, backend):
    case = golden(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in case.arrays.items()}
    low, high = case.case["min_return"], case.case["max_return"]
    bins = Bins(
        -1e5 if low is None else low,
        1e5 if high is None else high,
        case.case["output_bins"],
        symlog=case.case["use_symlog"],
    )
    torch.testing.assert_close(bins.values, t["bin_vals"], atol=1e-5, rtol=1e-5)
    values = kernels.two_hot_mean(t["logits"], bins, backend=backend).unsqueeze(-1)
    torch.testing.assert_close(values, t["values"], atol=1e-5, rtol=1e-4)
    logits = t["logits"][0].requires_grad_()
    kind = "hl-gauss" if case.case["label_type"] == "hlgauss" else "two-hot"
    target = t["target"].squeeze(-1)
    loss = LOSSES[kind](logits, target, bins, backend=backend)
    loss.sum().backward()
    # Beyond the support, normal labels of the golden numbers fade away; ours are those of the support's end.
    inside = torch.ones_like(target, dtype=torch.bool)
    if kind == "hl-gauss":
        inside = (target >= bins.low) & (target <= bins.high)
    assert inside.float().mean() > 0.3
    rows = inside.expand(loss.shape)
    torch.testing.assert_close(loss[rows], t["loss"][rows], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits.grad[rows], t["grad_logits"][rows], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", LOSSES)
def test_targets_are_clamped_to_the_support(backend, kind):
    bins = Bins(-10.0, 100.0, 33)
    logits = torch.randn(6, 33, generator=torch.Generator().manual_seed(0))
    far = torch.tensor([-10.0, -10.001, -3e38, -math.inf, 1e30, math.inf])
    ends = torch.tensor([-10.0, -10.0, -10.0, -10.0, 100.0, 100.0])
    loss = LOSSES[kind](logits, far, bins, backend=backend)
    expected, _ = loss_and_gradient(kind, logits, ends, bins)
    torch.testing.assert_close(loss.double(), expected, **LOSS)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", LOSSES)
def test_a_nan_target_makes_only_its_own_row_nan(backend, kind):
    bins = Bins(-10.0, 10.0, 9)
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = LOSSES[kind](logits, torch.tensor([1.0, math.nan, 2.0]), bins, backend=backend)
    loss.sum().backward()
    assert loss.isnan().tolist() == [False, True, False]
    assert logits.grad.isnan().any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", LOSSES)
def test_masked_rows_have_zero_loss_and_gradient(backend, kind):
    bins = Bins(-10.0, 10.0, 9)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    logits[1] = math.nan
    logits[2] = math.inf
    target = torch.tensor([1.0, math.nan, 4.0, 2.0])
    mask = torch.tensor([True, False, False, True])
    logits.requires_grad_()
    loss = LOSSES[kind](logits, target, bins, mask=mask, backend=backend)
    loss.sum().backward()
    assert loss[~mask].tolist() == [0.0, 0.0]
    assert logits.grad[~mask].count_nonzero() == 0
    expected, gradient = loss_and_gradient(kind, logits[mask], target[mask], bins)
    torch.testing.assert_close(loss[mask].double(), expected, **LOSS)
    torch.testing.assert_close(logits.grad[mask].double(), gradient, atol=1e-5, rtol=1e-4)
    nothing = LOSSES[kind](logits, target, bins, mask=torch.tensor(False), backend=backend)
    assert nothing.tolist() == [0.0] * 4


LOGITS, TARGET, BINS = torch.zeros(2, 3, 8), torch.zeros(2, 1), Bins(-1.0, 1.0, 8)


@pytest.mark.parametrize(
    ("logits", "target", "options", "message"),
    [
        (LOGITS[..., :7], TARGET, {}, r"logits must end in the 8 bins, got shape \(2, 3, 7\)"),
        (LOGITS.long(), TARGET, {}, "logits must be floating-point numbers, got torch.int64"),
        (
            LOGITS,
            TARGET.T,
            {},
            r"target must broadcast to the rows \(2, 3\) of the logits, got shape \(1, 2\)",
        ),
        (LOGITS, TARGET[None], {}, r"target must broadcast to the rows"),
        (
            LOGITS,
            TARGET.long(),
            {},
            r"target must be floating-point returns, got torch.int64: pass target.float\(\)",
        ),
        (LOGITS, TARGET, {"mask": TARGET}, "mask must be bool, true where a row counts, got torch.float32"),
        (LOGITS, TARGET, {"mask": TARGET.T.bool()}, "mask must broadcast to the rows"),
        (LOGITS, TARGET, {"weight": TARGET.T}, "weight must broadcast to the rows"),
        (LOGITS, TARGET, {"weight": TARGET.bool()}, "weight must be floating-point numbers"),
        (LOGITS, TARGET.to("meta"), {}, "target must be on cpu like the logits, got meta"),
        (LOGITS, TARGET, {"backend": "magic"}, "backend must be 'auto' or one of"),
    ],
)
def test_bad_arguments_raise_errors_that_name_them(logits, target, options, message):
    for loss in LOSSES.values():
        with pytest.raises(ValueError, match=message):
            loss(logits, target, BINS, **options)


def test_settings_out_of_range_are_named():
    with pytest.raises(
        ValueError, match="sigma must be a positive number of bin widths, from 1e-6 to 1e6, got 0"
    ):
        kernels.hl_gauss_cross_entropy(LOGITS, TARGET, BINS, sigma=0.0)
    with pytest.raises(ValueError, match="n must be at least 2 bins, got 1"):
        Bins(-1.0, 1.0, 1)
    with pytest.raises(TypeError, match=r"n must be an integer number of bins, got 8\.0"):
        Bins(-1.0, 1.0, 8.0)
    with pytest.raises(ValueError, match=r"low and high must be finite with low < high, got 2\.0 and 1\.0"):
        Bins(2.0, 1.0, 8)
    with pytest.raises(ValueError, match="low and high must be finite"):
        Bins(-math.inf, 1.0, 8)
