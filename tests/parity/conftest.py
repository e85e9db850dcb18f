"""The formulas of networks in plain float64 operations, and how a module is compared with them.

The functions of `Formulas` know a module by the names and shapes in its state dict alone. They are written with
elementary operations of float64 tensors, so that automatic differentiation gives the gradients that the module's
own must equal. Sizes and numbers are drawn from the seed that is part of each test's name.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.agent import Batch
from amago.nets.specs import ActionSpec

SLOPE = 0.01  # of the leaky ReLU


class Formulas:
    """Building blocks; `w` maps names of a state dict to float64 tensors, `name` is a prefix within it."""

    @staticmethod
    def named(w: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """A state under the name that a larger module would give it."""
        return {f"{prefix}.{name}": value for name, value in w.items()}

    @staticmethod
    def activation(name: str, x: Tensor) -> Tensor:
        if name == "relu":
            return x * (x > 0)
        if name == "leaky_relu":
            return torch.where(x > 0, x, SLOPE * x)
        if name == "gelu":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        if name == "mish":
            return x * torch.tanh(torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0))
        raise AssertionError(name)

    @staticmethod
    def symlog(x: Tensor) -> Tensor:
        return torch.where(x < 0, -torch.log(1 - x.clamp(max=0)), torch.log(1 + x.clamp(min=0)))

    @staticmethod
    def norm(method: str | None, w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        width = x.shape[-1]
        length = (x * x).sum(-1, keepdim=True).clamp(min=1e-24) ** 0.5  # a ReLU may leave nothing but zeros
        if method in (None, "none"):
            return x
        if method == "layer":
            centred = x - x.sum(-1, keepdim=True) / width
            variance = (centred * centred).sum(-1, keepdim=True) / width
            return centred / (variance + 1e-5) ** 0.5 * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]
        if method == "rmsnorm":
            return w[f"{name}.norm.scale"] * x / ((x * x).sum(-1, keepdim=True) / width + 1e-5) ** 0.5
        if method == "unitball":
            return x / (length + 1e-5)
        if method == "unitball-detach":
            return x / (length.detach() + 1e-5)
        if method == "hypersphere":
            return width**0.5 * x / length
        if method == "simnorm":
            parts = []
            for i in range(0, width, 8):
                powers = torch.exp(x[..., i : i + 8] - x[..., i : i + 8].max().detach())
                parts.append(powers / powers.sum(-1, keepdim=True))
            return torch.cat(parts, -1)
        raise AssertionError(method)

    @staticmethod
    def linear(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        """Plain, or divided by its spectral norm where u and v belong to it."""
        weight = w[f"{name}.weight"]
        if f"{name}.gamma" in w:
            sigma = (w[f"{name}.u"][:, None] * weight * w[f"{name}.v"][None]).sum()
            weight = weight * w[f"{name}.gamma"] / sigma
        y = (x[..., None, :] * weight).sum(-1)
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    @classmethod
    def mlp(cls, w: Mapping[str, Tensor], name: str, x: Tensor, activation: str, norm: str | None) -> Tensor:
        hidden = cls.linear(w, f"{name}.in_layer", x)
        x = cls.activation(activation, cls.norm(norm, w, f"{name}.in_norm", hidden))
        i = 0
        while f"{name}.layers.{i}.weight" in w:
            hidden = cls.linear(w, f"{name}.layers.{i}", x)
            x = cls.activation(activation, cls.norm(norm, w, f"{name}.norms.{i}", hidden))
            i += 1
        return cls.linear(w, f"{name}.out_layer", x)

    @classmethod
    def ff_block(
        cls, w: Mapping[str, Tensor], name: str, x: Tensor, activation: str, norm: str | None
    ) -> Tensor:
        hidden = cls.norm(norm, w, f"{name}.norm1", cls.linear(w, f"{name}.ff1", x))
        hidden = cls.linear(w, f"{name}.ff2", cls.activation(activation, hidden))
        return x + cls.activation(activation, cls.norm(norm, w, f"{name}.norm2", hidden))


class Draw:
    """Random sizes and numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.sizes = np.random.default_rng(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # of the modules' own initialisation

    def size(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.sizes.integers(low, high + 1))

    def choice(self, options: Any) -> Any:
        return options[int(self.sizes.integers(len(options)))]

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=self.numbers)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.numbers)

    def indices(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.numbers)

    def disturb(self, module: nn.Module, scale: float = 0.3) -> nn.Module:
        """Moves every parameter, so that no bias is 0 and no factor 1 as after initialisation."""
        with torch.no_grad():
            for p in module.parameters():
                p += scale * self.normal(*p.shape)
        return module


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def random_batch() -> Callable[[ActionSpec, int, int], Batch]:
    """Random numbers for observations "a" (3,) and "b" (2, 2), lengths included, by torch's own generator."""

    def make(spec: ActionSpec, rows: int, timesteps: int) -> Batch:
        if spec.kind == "discrete":
            actions = F.one_hot(torch.randint(spec.dim, (rows, timesteps - 1)), spec.dim).float()
        else:
            actions = torch.rand(rows, timesteps - 1, spec.dim) * 2 - 1
        return Batch(
            obs={"a": torch.randn(rows, timesteps, 3), "b": torch.randn(rows, timesteps, 2, 2)},
            rl2s=torch.randn(rows, timesteps, 1 + spec.dim),
            rews=torch.randn(rows, timesteps - 1, 1),
            dones=torch.rand(rows, timesteps - 1, 1) < 0.2,
            actions=actions,
            time_idxs=torch.arange(timesteps).view(1, -1, 1).repeat(rows, 1, 1),
            lengths=torch.randint(2, timesteps + 1, (rows,)),
        )

    return make


@pytest.fixture
def same_update() -> Callable[[nn.Module, Tensor, nn.Module, Tensor], None]:
    """Compares a loss and all the gradients behind it with those of a float64 copy of the agent."""

    def compare(agent: nn.Module, loss: Tensor, exact: nn.Module, exact_loss: Tensor) -> None:
        torch.testing.assert_close(loss.double(), exact_loss, atol=1e-5, rtol=1e-4)
        loss.backward()
        exact_loss.backward()
        for (name, p), other in zip(agent.named_parameters(), exact.parameters(), strict=True):
            if p.requires_grad:
                a, b = (torch.zeros_like(x) if x.grad is None else x.grad for x in (p, other))
                torch.testing.assert_close(
                    a.double(), b, atol=2e-4, rtol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
                )

    return compare


@pytest.fixture
def episodes() -> Callable[[Tensor], Iterator[tuple[int, slice]]]:
    """The rows and steps of each episode of a rollout, from where it `ended` (rows, steps) bool."""

    def find(ended: Tensor) -> Iterator[tuple[int, slice]]:
        for row, ends in enumerate(ended.tolist()):
            start = 0
            for stop in (*(t + 1 for t, end in enumerate(ends) if end), len(ends)):
                if stop > start:
                    yield row, slice(start, stop)
                start = stop

    return find


@pytest.fixture
def f64() -> type[Formulas]:
    return Formulas


@pytest.fixture
def draw() -> type[Draw]:
    return Draw


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """The state in float64; parameters that require gradients are leaves."""
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return {
        name: value.detach().double().requires_grad_(name in trained) if value.is_floating_point() else value
        for name, value in module.state_dict().items()
    }


def leaf(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of an input that gathers its own gradient; integers stay as they are."""
    return x.detach().clone().to(dtype).requires_grad_() if x.is_floating_point() else x


@pytest.fixture
def f64_weights() -> Callable[[nn.Module], dict[str, Tensor]]:
    return weights_of


def assert_forward(actual: Tensor, expected: Tensor, what: str = "output") -> None:
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-4, msg=lambda m: f"{what}: {m}")


def assert_gradient(actual: Tensor | None, expected: Tensor | None, like: Tensor, what: str) -> None:
    actual, expected = (torch.zeros_like(like) if g is None else g for g in (actual, expected))
    # Sums over many terms lose digits in proportion to the largest gradient, not to their own size.
    atol = 1e-4 * max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
    torch.testing.assert_close(
        actual.double(), expected.double(), atol=atol, rtol=1e-3, msg=lambda m: f"gradient of {what}: {m}"
    )


@pytest.fixture
def same_forward() -> Callable[..., None]:
    return assert_forward


@pytest.fixture
def same_as_formula() -> Callable[..., None]:
    """Compares a module's output and every gradient with a formula's, in float32 and in float64."""

    def compare(
        module: nn.Module,
        call: Callable[..., Tensor],
        formula: Callable[..., Tensor],
        *inputs: Tensor,
        dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
    ) -> None:
        for dtype in dtypes:
            module = module.to(dtype)
            module.zero_grad()
            w = weights_of(module)
            ours, exact = ([leaf(x, to) for x in inputs] for to in (dtype, torch.float64))
            y = call(*ours)
            expected = formula(w, *exact)
            assert y.dtype == dtype
            close = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 1e-9, "rtol": 1e-7}
            torch.testing.assert_close(y.double(), expected, **close)
            if not y.requires_grad:
                continue
            upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            (y * upstream.to(dtype)).sum().backward()
            (expected * upstream).sum().backward()
            for name, p in module.named_parameters():
                assert_gradient(p.grad, w[name].grad, p, name)
            for i, (a, b) in enumerate(zip(ours, exact, strict=True)):
                if a.is_floating_point():
                    assert_gradient(a.grad, b.grad, a, f"input {i}")

    return compare
