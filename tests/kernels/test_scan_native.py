"""The C++ of the selective scan: what test_scan.py, which runs on every backend, does not ask of it."""

import pytest
import torch

from amago import kernels
from amago.kernels.scan import native

SIZES = [(1, 1, 1, 1), (17, 2, 64, 16), (33, 3, 65, 5), (16, 2, 130, 4)]  # L, B, d, n


@pytest.fixture
def poisoned():
    """Uninitialised memory is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def arguments(length, rows, channels, states, dtype=torch.float32, seed=0):
    """u, delta (L, B, d), A (n, d), B, C (L, B, n) and the state before (B, n, d)."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    u, delta = draw(length, rows, channels), draw(length, rows, channels).abs()
    A = -draw(states, channels).abs()
    return u, delta, A, draw(length, rows, states), draw(length, rows, states), draw(rows, states, channels)


def test_threads_change_nothing():
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        inputs = [x.requires_grad_() for x in arguments(40, 5, 130, 8)]
        y, last = native.recurrence(*inputs)
        (y.square().sum() + last.sum()).backward()
        results.append([y.detach(), *(x.grad for x in inputs)])
    torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_overflowing_states_are_infinite_and_nan_stays_nan():
    u, delta = torch.ones(1, 1, 3), torch.tensor([[[88.0, 89.0, float("nan")]]])
    one = torch.ones(1, 3)
    _, last, _ = native.forward(u, delta, one, one[:, :1, None], one[:, :1, None], one[None], save=False)
    assert last[0, 0, 0].isfinite()
    torch.testing.assert_close(
        last[0, 0, 0].double(), torch.tensor(88.0).double().exp() + 88, rtol=1e-6, atol=0
    )
    assert last[0, 0, 1] == torch.inf
    assert last[0, 0, 2].isnan()


def step_inputs(rows, channels, states, dtype=torch.float32, seed=0):
    """What `selective_scan_step` takes, by name."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    return {
        "state": draw(rows, channels, states),
        "u": draw(rows, channels),
        "delta": 3 * draw(rows, channels),
        "A": -draw(channels, states).exp(),
        "B": draw(rows, states),
        "C": draw(rows, states),
        "D": draw(channels),
        "z": 3 * draw(rows, channels),
        "delta_bias": draw(channels),
    }


@pytest.mark.parametrize("states", [1, 5, 16, 20, 33])
@pytest.mark.parametrize("channels", [1, 16, 37])
@pytest.mark.parametrize("missing", [(), ("D",), ("z", "delta_bias"), ("D", "z", "delta_bias")], ids=str)
def test_a_step_equals_its_formula_in_float64(poisoned, states, channels, missing):
    inputs = {name: x for name, x in step_inputs(3, channels, states).items() if name not in missing}
    for softplus in (True, False):
        given = {**inputs, "delta": inputs["delta"] if softplus else inputs["delta"].abs()}
        ours = kernels.selective_scan_step(**given, delta_softplus=softplus, backend="cpp")
        doubles = {name: x.double() for name, x in given.items()}
        truth = kernels.selective_scan_step(**doubles, delta_softplus=softplus, backend="eager")
        for x, y in zip(ours, truth, strict=True):
            assert x.dtype == torch.float32
            torch.testing.assert_close(x.double(), y, atol=2e-5, rtol=2e-6)


def test_softplus_is_exact_to_the_last_digits_wherever_it_is_taken():
    delta = torch.cat((torch.linspace(-86.0, 60.0, 4001), torch.tensor([1e30, -200.0])))
    one, zeros = torch.ones(1, 1), torch.zeros(1, len(delta))
    # With a state and a rate of 0, B = C = u = 1, the output is the length of the step itself.
    y, _ = kernels.selective_scan_step(
        zeros[..., None], zeros + 1, delta[None], zeros.mT, one, one, delta_softplus=True, backend="cpp"
    )
    expected = torch.nn.functional.softplus(delta.double(), threshold=1e9)
    torch.testing.assert_close(y[0, :-1].double(), expected[:-1], rtol=4e-7, atol=0)
    assert y[0, -1] == 0.0
    nan, _ = kernels.selective_scan_step(
        zeros[:, :1, None], one, one * torch.nan, one * 0, one, one, delta_softplus=True, backend="cpp"
    )
    assert nan.isnan()
