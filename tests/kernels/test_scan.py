"""`selective_scan` and its step against the recurrence written out in float64, on every backend."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from amago import kernels

BACKENDS = ["eager", "torch", "cpp"]
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def written_out(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, initial_state=None):
    """One channel's state at a time: y (B, d, L) and the last state."""
    rows, channels, length = u.shape
    outputs, last = [], []
    for b in range(rows):
        for d in range(channels):
            h = torch.zeros_like(A[d]) if initial_state is None else initial_state[b, d]
            for t in range(length):
                dt = delta[b, d, t] + (0 if delta_bias is None else delta_bias[d])
                dt = torch.log1p(torch.exp(dt)) if delta_softplus else dt
                h = torch.exp(dt * A[d]) * h + dt * u[b, d, t] * B[b, :, t]
                y = C[b, :, t] @ h + (0 if D is None else D[d] * u[b, d, t])
                outputs.append(y if z is None else y * z[b, d, t] * torch.sigmoid(z[b, d, t]))
            last.append(h)
    return torch.stack(outputs).view(u.shape), torch.stack(last).view(rows, channels, -1)


def random_inputs(rows=2, channels=3, states=4, length=7, seed=0, dtype=torch.float64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "u": normal(rows, channels, length),
        "delta": normal(rows, channels, length),
        "A": -normal(channels, states).exp(),
        "B": normal(rows, states, length),
        "C": normal(rows, states, length),
        "D": normal(channels),
        "z": normal(rows, channels, length),
        "delta_bias": normal(channels),
    }


def gradients(call: Callable[..., Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Of a fixed random function of everything that `call` returns, with respect to every input."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    outputs = call(**leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
    return list(torch.autograd.grad(outputs, list(leaves.values()), upstream))


@pytest.mark.parametrize("backend", [*BACKENDS, None])
def test_the_golden_numbers(golden, backend):
    arrays = {name: torch.from_numpy(x) for name, x in golden("selective_scan").arrays.items()}
    leaves = [arrays[name].clone().requires_grad_() for name in NAMES]
    y, last = kernels.selective_scan(*leaves, delta_softplus=True, return_last_state=True, backend=backend)
    torch.testing.assert_close(y, arrays["y"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last, arrays["last_state"], atol=1e-5, rtol=1e-4)
    y.backward(arrays["gy"])
    for name, leaf in zip(NAMES, leaves, strict=True):
        torch.testing.assert_close(leaf.grad, arrays[f"grad_{name}"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "sizes",
    [
        {"length": 1},
        {"rows": 1, "channels": 1, "states": 1, "length": 5},
        {"length": 15},
        {"length": 16},
        {"length": 17},
        {"rows": 3, "channels": 5, "states": 7, "length": 35},
    ],
    ids=str,
)
def test_outputs_last_state_and_every_gradient_equal_the_recurrence(backend, sizes):
    inputs = random_inputs(**sizes, seed=2)
    rows, channels, states = inputs["u"].shape[0], inputs["A"].shape[0], inputs["A"].shape[1]
    inputs["initial_state"] = torch.randn(rows, channels, states, dtype=torch.float64)

    def ours(**inputs):
        return kernels.selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend=backend)

    def expected(**inputs):
        return written_out(**inputs, delta_softplus=True)

    for actual, wanted in zip(ours(**inputs), expected(**inputs), strict=True):
        torch.testing.assert_close(actual, wanted)
    for actual, wanted in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_a_loss_of_the_last_state_alone_has_gradients():
    inputs = random_inputs(seed=6)

    C = inputs["C"]
    for name in ("C", "D", "z"):  # the last state does not depend on them
        del inputs[name]

    def last(backend, **inputs):
        options = {"delta_softplus": True, "return_last_state": True, "backend": backend}
        return kernels.selective_scan(**inputs, C=C, **options)[1]

    grads = [gradients(functools.partial(last, backend), inputs) for backend in BACKENDS]
    for eager, *others in zip(*grads, strict=True):
        for other in others:
            torch.testing.assert_close(eager, other)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [-60.0, 60.0, 1e4])
def test_extreme_step_sizes_give_finite_values_and_gradients(backend, size):
    """A step of almost nothing keeps the state, a huge one forgets it: exp of a large sum never appears."""
    inputs = random_inputs(length=40, seed=9, dtype=torch.float32)
    inputs["delta"] = inputs["delta"].abs() + 1
    inputs["delta"][..., 10:20] *= size

    def call(**x):
        return kernels.selective_scan(**x, delta_softplus=True, backend=backend)

    assert call(**inputs).isfinite().all()
    double = {name: x.double() for name, x in inputs.items()}
    wide = kernels.selective_scan(**double, delta_softplus=True, backend="eager")
    torch.testing.assert_close(call(**inputs).double(), wide, atol=1e-4, rtol=1e-4)
    for grad, wanted in zip(gradients(call, inputs), gradients(call, double), strict=True):
        assert grad.isfinite().all()
        torch.testing.assert_close(grad.double(), wanted, atol=1e-3, rtol=1e-3)


def test_many_rows_are_walked_in_blocks():
    """More numbers than fit the cache at once: the rows' results do not depend on their neighbours."""
    inputs = random_inputs(rows=9, channels=256, states=64, length=20, seed=14, dtype=torch.float32)
    alone = {name: x[4:5] if x.dim() == 3 else x for name, x in inputs.items()}
    call = lambda **x: kernels.selective_scan(**x, delta_softplus=True, backend="torch")  # noqa: E731
    torch.testing.assert_close(call(**inputs)[4:5], call(**alone), atol=1e-5, rtol=1e-5)
    together = gradients(call, inputs)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    out = kernels.selective_scan(**leaves, delta_softplus=True, backend="eager")
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).float()
    single = torch.autograd.grad(out, list(leaves.values()), upstream)
    for mine, wanted in zip(together, single, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_equal_the_sequence(backend):
    inputs = random_inputs(length=9, seed=15)
    whole, last = kernels.selective_scan(**inputs, delta_softplus=True, return_last_state=True)
    state = torch.zeros(2, 3, 4, dtype=torch.float64)
    for t in range(9):
        now = {name: x[..., t] if x.dim() == 3 else x for name, x in inputs.items()}
        before = state.clone()
        y, new_state = kernels.selective_scan_step(state, **now, delta_softplus=True, backend=backend)
        assert torch.equal(state, before)  # the given state is not changed
        torch.testing.assert_close(y, whole[..., t])
        state = new_state
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_may_be_continued(backend):
    inputs = random_inputs(length=21, seed=16)
    whole = kernels.selective_scan(**inputs, backend=backend)

    def part(steps):
        return {name: x[..., steps] if x.dim() == 3 else x for name, x in inputs.items()}

    first, state = kernels.selective_scan(**part(slice(0, 8)), return_last_state=True, backend=backend)
    second = kernels.selective_scan(**part(slice(8, 21)), initial_state=state, backend=backend)
    torch.testing.assert_close(torch.cat([first, second], -1), whole)


def test_a_step_has_gradients_too():
    inputs = {n: x[..., 0] if x.dim() == 3 else x for n, x in random_inputs(seed=17).items()}
    state = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x.clone().requires_grad_() for x in inputs.values()]

    def call(state, *inputs):
        return kernels.selective_scan_step(state, *inputs, delta_softplus=True)

    assert torch.autograd.gradcheck(call, (state, *leaves))
    with pytest.raises(RuntimeError, match="torch: an input needs a gradient"):
        kernels.selective_scan_step(state, *leaves, backend="torch")


def test_training_keeps_one_state_in_sixteen():
    """What the graph holds is about the inputs' size, not the (L, B, d, n) of all states."""
    kept = 0

    def count(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    inputs = {n: x.requires_grad_() for n, x in random_inputs(4, 32, 16, 128, dtype=torch.float32).items()}
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        kernels.selective_scan(**inputs, delta_softplus=True)
    all_states = 4 * 32 * 16 * 128
    assert kept < 0.75 * all_states


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.zeros(3, 7)}, r"u must be \(batch, channels, length\).*got \(3, 7\)"),
        ({"u": torch.zeros(2, 3, 0)}, r"length of at least 1, got \(2, 3, 0\)"),
        ({"A": torch.zeros(4, 3)}, r"A must be \(channels, states\) with 3 channels as u has, got \(4, 3\)"),
        ({"delta": torch.zeros(2, 3, 6)}, r"delta must be \(2, 3, 7\) to fit u .*got \(2, 3, 6\)"),
        ({"B": torch.zeros(2, 3, 7)}, r"B must be \(2, 4, 7\).*got \(2, 3, 7\)"),
        ({"C": torch.zeros(1, 4, 7)}, r"C must be \(2, 4, 7\).*got \(1, 4, 7\)"),
        ({"D": torch.zeros(4)}, r"D must be \(3,\).*got \(4,\)"),
        ({"z": torch.zeros(2, 3)}, r"z must be \(2, 3, 7\).*got \(2, 3\)"),
        ({"delta_bias": torch.zeros(3, dtype=torch.int64)}, r"delta_bias must be real .*got torch.int64"),
        ({"A": torch.zeros(3, 4, dtype=torch.complex64)}, r"A must be real .*got torch.complex64"),
        ({"D": torch.zeros(3, device="meta")}, "D must be on cpu like u, got meta"),
        ({"initial_state": torch.zeros(3, 4)}, r"initial_state must be \(2, 3, 4\).*got \(3, 4\)"),
        ({"backend": "tpu"}, "backend must be 'auto' or one of .*got 'tpu'"),
    ],
)
def test_bad_arguments_raise_errors_that_name_them(change, message):
    with pytest.raises(ValueError, match=message):
        kernels.selective_scan(**{**random_inputs(dtype=torch.float32), **change})


def test_a_step_takes_single_timesteps_and_a_wide_state():
    inputs = random_inputs(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"u must be \(batch, channels\) in a single step, got \(2, 3, 7\)"):
        kernels.selective_scan_step(torch.zeros(2, 3, 4), **inputs)
    step = {name: x[..., 0] if x.dim() == 3 else x for name, x in inputs.items()}
    with pytest.raises(ValueError, match=r"state must be float32 or float64, got torch\.bfloat16"):
        kernels.selective_scan_step(torch.zeros(2, 3, 4, dtype=torch.bfloat16), **step)
