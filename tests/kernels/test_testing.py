"""`amago.kernels.testing`: it finds what is wrong with a backend, and nothing in one that is right."""

import dataclasses

import pytest
import torch

from amago import kernels
from amago.kernels import examples, testing
from amago.kernels.backends import Backend, Implementation, Unsupported, operations, register


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
def test_what_is_wrong_is_named(with_backend, run, message):
    with_backend(run)
    with pytest.raises(AssertionError, match=r"linear \(7x33x65\) by torch: " + message):
        testing.check(examples.linear(), "torch")


def test_a_call_that_a_backend_cannot_run_is_neither_right_nor_wrong(with_backend, capsys):
    with_backend(inexact, lambda x, *_: ["it takes float64"] * (x.dtype != torch.float64))
    with pytest.raises(Unsupported, match="torch: it takes float64"):
        testing.check(examples.linear(), "torch")
    assert testing.main(["--only", "linear", "--backends", "torch", "--device", "cpu"]) == 1
    assert "0 passed, 3 failed, 11 it cannot run" in capsys.readouterr().out


def test_an_exception_is_a_failure_among_others(with_backend, capsys):
    def broken(x, *_):
        raise ZeroDivisionError("rows")

    with_backend(broken)
    assert testing.main(["--only", "linear", "--backends", "torch", "eager", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "linear (leaky, torch.float32) by torch: ZeroDivisionError: rows" in out
    assert "eager      14 passed, 0 failed" in out


def test_memory_is_full_of_nan_within_and_as_before_after():
    with testing.poisoned():
        assert torch.empty(1000).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_same_numbers_in_odd_memory():
    x = torch.arange(12.0).view(3, 4)
    assert torch.equal(testing.strided(x), x)
    assert testing.strided(x).stride() == (9, 2)
    assert torch.equal(testing.repeated(x), x[:1].expand(3, 4))
    assert testing.repeated(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("operation", list(kernels.available_backends()))
def test_every_operation_has_samples_that_name_it_and_its_gradients(operation):
    samples = list(examples.sample_calls(operation, "cpu"))
    assert len(samples) > 5
    assert {x.operation for x in samples} == {operation}
    assert all(set(x.gradients) <= set(x.tensors) for x in samples)
    assert len({x.name for x in samples}) == len(samples)


def test_infinities_have_to_be_where_they_belong():
    exact = torch.tensor([1.0, torch.inf, -torch.inf], dtype=torch.float64)
    testing.assert_as_exact_as(exact.float(), exact.float(), exact, name="x")
    for wrong in ([torch.inf, torch.inf, -torch.inf], [1.0, 3e38, -torch.inf], [1.0, torch.inf, torch.inf]):
        with pytest.raises(AssertionError, match="x is"):
            testing.assert_as_exact_as(torch.tensor(wrong), exact.float(), exact, name="x")


def test_an_example_can_be_made_again_in_float64():
    example = examples.attention_step(dtype=torch.bfloat16)
    double = example.double()
    assert {x.dtype for x in double.tensors.values()} == {torch.float64}
    assert all(torch.equal(double.tensors[name], x.double()) for name, x in example.tensors.items())
    assert dataclasses.replace(double, tensors=example.tensors) == example
