"""Every backend of every operation as training and rollouts call it, and with arguments that do not fit."""

from __future__ import annotations

import math

import pytest
import torch

from amago import kernels
from amago.kernels import Bins, RingCache


def outputs_of(example, backend):
    """The outputs of a call as a tuple."""
    outputs = example.run(backend)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_autocast_changes_neither_precision_nor_dtype(case_or_eager):
    if case_or_eager.operation == "linear":
        return  # which autocast is meant for
    example, backend = case_or_eager.small(), case_or_eager.backend
    expected = outputs_of(example, backend)
    with torch.autocast(case_or_eager.device, torch.bfloat16):
        torch.testing.assert_close(outputs_of(example, backend), expected, rtol=0, atol=0)


def test_inference_mode_changes_nothing(case_or_eager):
    example, backend = case_or_eager.small(), case_or_eager.backend
    expected = outputs_of(example, backend)
    with torch.inference_mode():
        found = [x.clone() for x in outputs_of(example, backend)]
    torch.testing.assert_close(found, list(expected), rtol=0, atol=0)


def gradients(example, backend, names, upstream=None):
    """Those of the first output, given its own, by default one of random numbers."""
    leaves = {name: example.tensors[name].detach().requires_grad_() for name in names}
    output = example.call(**{**example.tensors, **leaves}, backend=backend)
    output = output[0] if isinstance(output, tuple) else output
    if upstream is None:
        generator = torch.Generator().manual_seed(0)
        upstream = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
    return torch.autograd.grad(output, list(leaves.values()), upstream, allow_unused=True)


def test_each_gradient_is_the_same_when_it_is_the_only_one_asked_for(case_or_eager):
    example, backend = case_or_eager.small(), case_or_eager.backend
    if not case_or_eager.with_gradients(example):
        return
    together = gradients(example, backend, example.gradients)
    for name, expected in zip(example.gradients, together, strict=True):
        if expected is not None:
            torch.testing.assert_close(gradients(example, backend, [name])[0], expected)


def test_upstream_gradients_may_be_repeated_or_lie_in_any_order(case_or_eager):
    example, backend = case_or_eager.small(), case_or_eager.backend
    if not case_or_eager.with_gradients(example):
        return
    output = outputs_of(example, backend)[0]
    shuffled = torch.randn(output.shape[::-1], generator=torch.Generator().manual_seed(0)).to(output)
    shuffled = shuffled.permute(list(range(output.dim()))[::-1])
    for upstream in (torch.ones((), device=output.device).expand_as(output), shuffled):
        assert not upstream.is_contiguous()
        found = gradients(example, backend, example.gradients, upstream)
        plain = gradients(example, backend, example.gradients, upstream.contiguous())
        for odd, expected in zip(found, plain, strict=True):
            torch.testing.assert_close(odd, expected)


def test_a_second_derivative_is_right_or_an_error(case_or_eager):
    example, backend = case_or_eager.small(torch.float64), case_or_eager.backend
    if not case_or_eager.with_gradients(example):
        return
    name = example.gradients[-1]

    def penalty(backend):
        leaf = example.tensors[name].detach().requires_grad_()
        output = example.call(**{**example.tensors, name: leaf}, backend=backend)
        output = output[0] if isinstance(output, tuple) else output
        gradient = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)[0]
        return torch.autograd.grad(gradient.square().sum(), leaf)[0]

    try:
        found = penalty(backend)
    except (RuntimeError, NotImplementedError) as error:
        assert "derivative" in str(error) or "no autograd formula" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, penalty("eager"))


Q = torch.ones(2, 1, 3, 8)
CACHE = (torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 3, 8), torch.tensor([1, 7]))
LOGITS, TARGET, BINS = torch.zeros(2, 3, 8), torch.zeros(2, 1), Bins(-1.0, 1.0, 8)
SCAN = {"u": (2, 3, 5), "delta": (2, 3, 5), "A": (3, 4), "B": (2, 4, 5), "C": (2, 4, 5)}


def step(*cache, q=Q, **options):
    keys, values, lengths = cache or CACHE
    return kernels.attention_step(q, q, q, RingCache(keys, values, lengths), **options)


def scan(**changes):
    return kernels.selective_scan(**{name: torch.zeros(shape) for name, shape in SCAN.items()} | changes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: step(CACHE[0], CACHE[1], torch.tensor([1, 7]).int()),
            ValueError,
            "lengths must be torch.int64",
        ),
        (
            lambda: step(CACHE[0], CACHE[1][:, :2], CACHE[2]),
            ValueError,
            r"values must be like its keys.* \(2, 2, 3, 8\)",
        ),
        (
            lambda: step(*(x.to("meta") for x in CACHE)),
            ValueError,
            "the cache must be on cpu like q, got meta",
        ),
        (lambda: kernels.attention_step(Q, Q, Q, None), TypeError, "cache must be a RingCache, got NoneType"),
        (lambda: RingCache.empty(2, 0, 3, 8), ValueError, "window must be at least 1, got 0"),
        (lambda: RingCache.empty(-1, 4, 3, 8), ValueError, "batch_size must be at least 0, got -1"),
        (lambda: RingCache.empty(2, 4, "a", 8), TypeError, "n_heads must be an integer, got 'a'"),
        (
            lambda: RingCache(*CACHE).reset(torch.tensor([0.5])),
            TypeError,
            "rows must be integers, or a bool for each row, got torch.float32",
        ),
        (lambda: step(window=1.5), TypeError, "window must be None or an integer"),
        (lambda: step(scale=math.inf), ValueError, "scale must be None or a finite number, got inf"),
        (lambda: kernels.attention([1.0], Q, Q), TypeError, "q must be a torch.Tensor, got list"),
        (lambda: kernels.attention(Q, Q.to("meta"), Q), ValueError, "k must be torch.float32 on cpu like q"),
        (lambda: kernels.attention(*3 * [Q[..., :0]]), ValueError, "q must be .*head dim"),
        (
            lambda: kernels.attention(Q, Q, Q, lengths=torch.ones(2)),
            ValueError,
            "lengths must be integers, got torch.float32",
        ),
        (
            lambda: kernels.attention(Q, Q, Q, lengths=[1, 1]),
            TypeError,
            "lengths must be a torch.Tensor, got list",
        ),
        (lambda: scan(C=None), TypeError, "C must be a torch.Tensor, got NoneType"),
        (
            lambda: scan(z=torch.zeros(2, 3, 5, device="meta")),
            ValueError,
            "z must be on cpu like u, got meta",
        ),
        (lambda: kernels.two_hot_mean([0.0], BINS), TypeError, "logits must be a torch.Tensor, got list"),
        (lambda: kernels.two_hot_mean(LOGITS, 8), TypeError, "bins must be Bins, got 8"),
        (
            lambda: kernels.two_hot_cross_entropy(LOGITS, 0.3, BINS),
            TypeError,
            "target must be a torch.Tensor",
        ),
        (
            lambda: kernels.hl_gauss_cross_entropy(LOGITS, TARGET, BINS, sigma=math.inf),
            ValueError,
            "sigma must be a positive number of bin widths, from 1e-6 to 1e6, got inf",
        ),
        (
            lambda: kernels.linear(torch.ones(2, 3), torch.ones(4, 3).double()),
            ValueError,
            "weight must be torch.float32 like x, got torch.float64",
        ),
    ],
)
def test_bad_arguments_raise_errors_that_name_them(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_scales_of_zero_and_below_are_followed(scale):
    q, k, v = torch.randn(3, 2, 7, 3, 8, generator=torch.Generator().manual_seed(0))
    out = kernels.attention(q, k, v, scale=scale)
    torch.testing.assert_close(out, kernels.attention(q * scale, k, v, scale=1.0))
    with pytest.raises(RuntimeError, match=f"sdpa: .*needs a positive scale, got {scale}"):
        kernels.attention(q, k, v, scale=scale, backend="sdpa")


@pytest.mark.parametrize("backend", ["eager", "torch", "cpp"])
@pytest.mark.parametrize(("rows", "channels"), [(0, 3), (2, 0)])
def test_a_scan_of_no_rows_or_no_channels_is_empty_and_has_gradients(backend, rows, channels):
    shapes = {"u": (rows, channels, 5), "delta": (rows, channels, 5), "A": (channels, 4)}
    shapes |= {"B": (rows, 4, 5), "C": (rows, 4, 5)}
    inputs = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}
    y = kernels.selective_scan(**inputs, backend=backend)
    assert y.shape == (rows, channels, 5)
    y.sum().backward()
    assert all(x.grad.shape == x.shape and not x.grad.any() for x in inputs.values())
