"""`linear` against x W^T + b written out in float64, on every backend."""

import pytest
import torch

from amago import kernels
from amago.kernels.linear import onednn

BACKENDS = kernels.available_backends()["linear"]
EXACT = {"atol": 1e-5, "rtol": 1e-4}
# Rows, inputs and outputs around the widths of vector registers, and leading axes of every number.
SHAPES = [((7,), 5), ((1, 1), 1), ((33, 17), 31), ((2, 3, 64), 65), ((2, 1, 3, 129), 40)]


def formula(x, weight, bias, leaky):
    """One output feature at a time, in float64."""
    x, weight = x.double(), weight.double()
    columns = [(x * row).sum(-1) for row in weight]
    out = torch.stack(columns, -1)
    if bias is not None:
        out = out + bias.double()
    return out if leaky is None else torch.where(out > 0, out, leaky * out)


def random_layer(shape, n_out, *, with_bias=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    weight = torch.randn(n_out, shape[-1], generator=g) / shape[-1] ** 0.5
    bias = torch.randn(n_out, generator=g) if with_bias else None
    return x, weight, bias


def learnable(*tensors):
    return [None if t is None else t.clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("leaky", [None, 0.01, 1.0])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("shape", "n_out"), SHAPES, ids=str)
def test_output_and_gradients_equal_the_formula(shape, n_out, with_bias, leaky, backend):
    inputs = random_layer(shape, n_out, with_bias=with_bias)
    ours, theirs = learnable(*inputs), learnable(*inputs)
    out = kernels.linear(*ours, leaky=leaky, backend=backend)
    expected = formula(*theirs, leaky)
    assert out.shape == (*shape[:-1], n_out)
    torch.testing.assert_close(out.double(), expected, **EXACT)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (out * weights.float()).sum().backward()
    (expected * weights).sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        if our is not None:
            torch.testing.assert_close(our.grad, their.grad, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("leaky", [None, 0.01])
@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows_give_no_rows_and_gradients_of_zero(shape, leaky, backend):
    x, weight, bias = learnable(*random_layer(shape, 4))
    out = kernels.linear(x, weight, bias, leaky=leaky, backend=backend)
    assert out.shape == (*shape[:-1], 4)
    out.sum().backward()
    assert x.grad.shape == shape
    assert not weight.grad.any()
    assert not bias.grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_second_order_equal_the_formula(backend):
    results = []
    for layer in (lambda *inputs: kernels.linear(*inputs, leaky=0.1, backend=backend), formula_leaky):
        inputs = learnable(*random_layer((37, 24), 40, seed=3))
        loss = layer(*inputs).square().sum()
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
        results.append([x.grad.double() for x in inputs])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-3)


def formula_leaky(x, weight, bias):
    return formula(x, weight, bias, 0.1)


def test_large_products_equal_the_formula_whatever_library_is_chosen():
    x, weight, bias = random_layer((512, 256), 128, seed=5)
    assert x.numel() * weight.shape[0] >= onednn._WORTH_MULTIPLICATIONS
    out = kernels.linear(x, weight, bias, leaky=0.01)
    torch.testing.assert_close(out.double(), formula(x, weight, bias, 0.01), **EXACT)


def test_autocast_reaches_the_layer():
    x, weight, bias = random_layer((512, 256), 128, seed=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = kernels.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), formula(x, weight, bias, None), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (torch.ones(2, 3), torch.ones(4, 5)),
            r"x must have 5 features to fit weight \(4, 5\), got \(2, 3\)",
        ),
        ((torch.tensor(1.0), torch.ones(4, 5)), r"x must have 5 features to fit weight \(4, 5\), got \(\)"),
        ((torch.ones(2, 3), torch.ones(3)), r"weight must be \(outputs, inputs\), got \(3,\)"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)), r"bias must be \(4,\) .* got \(3,\)"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(1, 4)), r"bias must be \(4,\) .* got \(1, 4\)"),
    ],
    ids=["features", "no axis", "weight", "bias", "bias of two axes"],
)
def test_shapes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        kernels.linear(*arguments)


@pytest.mark.parametrize("leaky", [0.0, -0.1, 1.5, float("nan")])
def test_slopes_outside_zero_to_one_are_refused(leaky):
    """The gradient is read off the output, which overwrites the input."""
    with pytest.raises(ValueError, match=rf"leaky must be None or a slope in \(0, 1\], got {leaky}"):
        kernels.linear(torch.ones(2, 3), torch.ones(4, 3), leaky=leaky)


def test_an_explicit_backend_that_cannot_run_says_why():
    x, weight = torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"onednn: .*float32.*float64"):
        kernels.linear(x, weight, backend="onednn")
    with kernels.use_backend("onednn"), pytest.raises(RuntimeError, match=r"onednn: .*float32.*float64"):
        kernels.linear(x, weight)
    assert kernels.linear(x, weight).dtype == torch.float64


def test_a_slice_of_a_weight_equals_the_formula():
    """Ensembles split the first layer's weight into the columns of each input."""
    x, weight, bias = random_layer((512, 256), 128, seed=7)
    weight = torch.cat([weight, weight], dim=1)[:, : x.shape[-1]]
    out = kernels.linear(x, weight, bias)
    torch.testing.assert_close(out.double(), formula(x, weight, bias, None), **EXACT)
