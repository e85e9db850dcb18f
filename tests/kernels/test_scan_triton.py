"""The Triton kernels of `selective_scan` and its step against the eager recurrence in float64.

On a GPU these tests run on it. Elsewhere test_interpreter.py runs them in Triton's interpreter.
"""

import pytest
import torch

from amago import kernels
from amago.kernels.triton_runtime import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
SEQUENCES = ("u", "delta", "B", "C", "z")
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
on_gpu = pytest.mark.gpu if not INTERPRETED else pytest.mark.filterwarnings("default")


def random_inputs(rows=2, channels=3, states=4, length=7, *, seed=0, dtype=torch.float32, initial=False):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    inputs = {
        "u": normal(rows, channels, length),
        "delta": normal(rows, channels, length),
        "A": -normal(channels, states).exp(),
        "B": normal(rows, states, length),
        "C": normal(rows, states, length),
        "D": normal(channels),
        "z": normal(rows, channels, length),
        "delta_bias": normal(channels) - 1.0,
    }
    return inputs | ({"initial_state": normal(rows, channels, states)} if initial else {})


def results(inputs, backend, *, softplus=True, last_state=True):
    """y, the last state, and the gradients of a fixed random function of both with respect to every input."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    options = {"delta_softplus": softplus, "return_last_state": True, "backend": backend}
    y, last = kernels.selective_scan(**leaves, **options)
    outputs = (y, last) if last_state else (y,)
    generator = torch.Generator().manual_seed(99)
    upstream = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]
    return [y, last, *torch.autograd.grad(outputs, list(leaves.values()), upstream)]


@on_gpu
def test_triton_gives_the_golden_numbers(golden):
    arrays = {name: torch.from_numpy(x).to(DEVICE) for name, x in golden("selective_scan").arrays.items()}
    leaves = [arrays[name].clone().requires_grad_() for name in NAMES]
    y, last = kernels.selective_scan(*leaves, delta_softplus=True, return_last_state=True, backend="triton")
    torch.testing.assert_close(y, arrays["y"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last, arrays["last_state"], atol=1e-5, rtol=1e-4)
    y.backward(arrays["gy"])
    for name, leaf in zip(NAMES, leaves, strict=True):
        torch.testing.assert_close(leaf.grad, arrays[f"grad_{name}"], atol=1e-4, rtol=1e-3)


@on_gpu
@pytest.mark.parametrize("layout", ["channels last", "every second", "shared"])
def test_triton_reads_and_writes_tensors_where_they_lie(poisoned, layout):
    plain = random_inputs(length=9 if INTERPRETED else 40, seed=3)
    other = dict(plain)
    for name, x in plain.items():
        if layout == "channels last" and name in SEQUENCES:
            other[name] = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif layout == "every second":
            other[name] = torch.stack([x, x], -1)[..., 0]
        elif layout == "shared" and name in SEQUENCES:
            other[name] = x[:1].expand_as(x)
    wanted = results({name: x.contiguous() for name, x in other.items()}, "eager")
    for mine, exact in zip(results(other, "triton"), wanted, strict=True):
        torch.testing.assert_close(mine, exact, atol=1e-5, rtol=1e-4)


@on_gpu
@pytest.mark.parametrize("size", [-60.0, 60.0, 1e4])
def test_triton_stays_exact_with_extreme_step_sizes(size):
    """A step of almost nothing keeps the state, a huge one forgets it."""
    inputs = random_inputs(rows=1, length=14, seed=4)
    inputs["delta"] = inputs["delta"].abs() + 1
    inputs["delta"][..., 5:10] *= size
    wanted = results({name: x.double() for name, x in inputs.items()}, "eager")
    for mine, exact in zip(results(inputs, "triton"), wanted, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine.double(), exact, atol=1e-3, rtol=1e-3)


@on_gpu
def test_triton_steps_equal_the_sequence_and_have_gradients():
    inputs = random_inputs(length=5, seed=6)
    whole, last = kernels.selective_scan(
        **inputs, delta_softplus=True, return_last_state=True, backend="eager"
    )
    state = torch.zeros(2, 3, 4, device=DEVICE)
    for t in range(5):
        now = {name: x[..., t] if x.dim() == 3 else x for name, x in inputs.items()}
        before = state.clone()
        y, new_state = kernels.selective_scan_step(state, **now, delta_softplus=True, backend="triton")
        assert torch.equal(state, before)  # the given state is not changed
        torch.testing.assert_close(y, whole[..., t], atol=1e-5, rtol=1e-4)
        state = new_state
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-4)

    grads = []
    for backend in ("triton", "eager"):
        leaves = [x.clone().requires_grad_() for x in (last, *now.values())]
        y, state = kernels.selective_scan_step(*leaves, delta_softplus=True, backend=backend)
        grads.append(torch.autograd.grad(y.sum() + state.square().sum(), leaves))
    for mine, exact in zip(*grads, strict=True):
        torch.testing.assert_close(mine, exact, atol=1e-5, rtol=1e-4)
