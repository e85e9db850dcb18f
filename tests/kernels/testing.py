"""Checks of backends against a float64 reference, in memory full of NaN.

    python -m tests.kernels.testing                    every backend that runs here, on the GPU if there is one
    python -m tests.kernels.testing --only attention

The reference is the eager backend in float64 on the same values. A result may err twice as much as the eager
backend does in the same precision, plus a rounding.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from tests.kernels.examples import Example
from tests.kernels.samples import sample_calls
from torch import Tensor

from amago.kernels.backends import Unsupported, operations

FACTOR = 2.0  # of the eager backend's own error, after flash-attention's tests
_ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6}  # relative; sums are ordered differently


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, memory that torch allocates is full of NaN (integers: their maximum) until it is written."""
    mode = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of operations that are not deterministic on a GPU, beside the point here
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)


def results(example: Example, backend: str | None, *, gradients: bool = True) -> dict[str, Tensor]:
    """The outputs of a call, and the gradients of a fixed random function of them, by name.

    Raises:
        Unsupported: if the backend cannot run the call.
    """
    leaves = {
        name: x.detach().requires_grad_(gradients and name in example.gradients)
        for name, x in example.tensors.items()
    }
    outputs = example.call(**leaves, backend=backend)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": x.detach() for i, x in enumerate(outputs)}
    followed = [x for x in outputs if x.requires_grad]
    if not followed:
        return found
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in followed]
    inputs = [leaves[name] for name in example.gradients]
    grads = torch.autograd.grad(followed, inputs, upstream, allow_unused=True)
    for name, x, grad in zip(example.gradients, inputs, grads, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(x) if grad is None else grad
    return found


def _numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """x in float64 with zeros in place of what is not finite, and those places as they are."""
    x = x.double()
    finite = x.isfinite()
    return x.where(finite, 0.0), x.where(~finite, 0.0)


def assert_as_exact_as(ours: Tensor, plain: Tensor, exact: Tensor, *, name: str, terms: float = 0.0) -> None:
    """Raises AssertionError unless `ours` is as near to `exact` as it has to be.

    Args:
        ours: what is judged.
        plain: the same by the eager backend in the same precision.
        exact: the same in float64. NaN and infinities have to be where it has them.
        name: of the number, for the message.
        terms: see `Example`.
    """
    if (ours.dtype, ours.shape) != (plain.dtype, plain.shape):
        raise AssertionError(
            f"{name} is {ours.dtype} {tuple(ours.shape)}, not {plain.dtype} {tuple(plain.shape)}"
        )
    finite, special = _numbers(exact)
    mine, mine_special = _numbers(ours)
    same = special.isnan() == mine_special.isnan()
    same &= (special == mine_special) | special.isnan()
    if ours.dtype == torch.float16:  # what overflows there is finite in float64
        same |= mine_special.isinf() & (finite.abs() > 6e4)
    if not same.all():
        place = tuple((~same).nonzero()[0].tolist())
        raise AssertionError(f"{name} is {ours[place].item()} at {place}, not {exact[place].item()}")
    if not ours.numel():
        return
    here = (mine_special == 0) & (special == 0)
    error = (mine - finite).abs().where(here, 0.0)
    eager = (_numbers(plain)[0] - finite).abs().where(here, 0.0).max().item()
    relative = _ROUNDING.get(ours.dtype, torch.finfo(ours.dtype).eps)
    rounding = relative * finite.abs().max().item() + min(relative, 4e-6) * terms
    allowed = FACTOR * eager + rounding
    worst = error.max().item()
    if worst > allowed:
        place = tuple((error == worst).nonzero()[0].tolist())
        raise AssertionError(
            f"{name} is {ours[place].item():.8g} at {place}, not {exact[place].item():.8g}: it errs by "
            f"{worst:.3g}, {allowed:.3g} is allowed ({eager:.3g} is the eager backend's worst error)"
        )


def check(example: Example, backend: str, *, gradients: bool = True) -> None:
    """Raises AssertionError unless outputs and gradients of a call are as exact as those of the eager backend.

    Raises:
        Unsupported: if the backend cannot run the call.
    """
    with poisoned():
        ours = results(example, backend, gradients=gradients)
    plain = results(example, "eager", gradients=gradients)
    exact = results(example.double(), "eager", gradients=gradients)
    for name, x in ours.items():
        label = f"{example.operation} ({example.name}) by {backend}: {name}"
        assert_as_exact_as(x, plain[name], exact[name], name=label, terms=example.terms)


def _outcome(example: Example, backend: str) -> str:
    """With gradients, or without if the backend has none: "passed", "refused", or what is wrong."""
    for gradients in (True, False):
        try:
            check(example, backend, gradients=gradients)
        except Unsupported:
            continue
        except Exception as error:  # reported at the end; the other calls are still checked
            return f"{example.operation} ({example.name}) by {backend}: {type(error).__name__}: {error}"
        return "passed"
    return "refused"


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks every backend that runs here on every sample call; returns the exit status, 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.testing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=list(operations()), help="one operation")
    options = parser.parse_args(arguments)
    failures = []
    for operation in [options.only] if options.only else operations():
        for implementation in operations()[operation]:
            backend = implementation.backend.value
            missing = implementation.missing(False)
            if missing:
                print(f"{operation:24} {backend:10} not here: {'; '.join(missing)}", flush=True)
                continue
            outcomes = [_outcome(example, backend) for example in sample_calls(operation, options.device)]
            passed, refused = outcomes.count("passed"), outcomes.count("refused")
            print(
                f"{operation:24} {backend:10} {passed} of {len(outcomes)} passed, {refused} refused",
                flush=True,
            )
            failures += [x for x in outcomes if x not in ("passed", "refused")]
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
