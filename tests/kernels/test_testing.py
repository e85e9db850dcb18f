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
