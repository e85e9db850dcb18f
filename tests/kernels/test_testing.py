"""The checks of `testing.py`: a wrong backend fails them, a right one passes."""

import pytest
import torch
from tests.kernels import examples, testing

from amago.kernels.backends import Backend, Implementation, operations, register


@pytest.fixture
def with_backend():
    """Puts another implementation of `linear` in the place of oneDNN's, for one test."""
    before = operations()["linear"]

    def put(run, unsupported=lambda *_: []):
        register("linear", [Implementation(Backend.TORCH, run, unsupported), *before])

    yield put
    register("linear", before)


def right(x, weight, bias, leaky):
    return torch.nn.functional.leaky_relu(x @ weight.T + bias, leaky)


def unwritten(x, weight, bias, leaky):
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    out[:, 1:] = right(x, weight, bias, leaky)[:, 1:]
    return out


def inexact(x, weight, bias, leaky):
    return right(x, weight, bias, leaky) * (1 + 3e-5)


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient of 1.01."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.01


def test_a_backend_that_is_right_passes(with_backend):
    with_backend(right)
    testing.check(examples.linear(), "torch")
    testing.check(examples.linear(dtype=torch.bfloat16), "torch")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (unwritten, r"output 0 is nan at \(0, 0\), not"),
        (inexact, r"output 0 is .* it errs by .* is allowed"),
        (
            lambda x, *rest: right(x, *rest).double(),
            r"output 0 is torch.float64 \(7, 65\), not torch.float32",
        ),
        (lambda x, weight, *rest: right(x, WrongGradient.apply(weight), *rest), "gradient of weight is"),
    ],
    ids=["unwritten", "inexact", "dtype", "gradient"],
)
def test_the_message_names_the_wrong_result(with_backend, run, message):
    with_backend(run)
    with pytest.raises(AssertionError, match=r"linear \(7x33x65\) by torch: " + message):
        testing.check(examples.linear(), "torch")


def test_memory_is_full_of_nan_within_and_as_before_after():
    with testing.poisoned():
        assert torch.empty(1000).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_infinities_have_to_be_where_they_belong():
    exact = torch.tensor([1.0, torch.inf, -torch.inf], dtype=torch.float64)
    testing.assert_as_exact_as(exact.float(), exact.float(), exact, name="x")
    for wrong in ([torch.inf, torch.inf, -torch.inf], [1.0, 3e38, -torch.inf], [1.0, torch.inf, torch.inf]):
        with pytest.raises(AssertionError, match="x is"):
            testing.assert_as_exact_as(torch.tensor(wrong), exact.float(), exact, name="x")
