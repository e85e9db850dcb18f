"""The correctness matrix: every backend of every operation against the eager one in float64.

Example calls (`samples.py`) and random ones, gradients, torch.library.opcheck and torch.compile. The tests of each
operation compare the eager backend with formulas of their own. test_interpreter.py runs this file in Triton's
interpreter.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.kernels import examples, samples, testing
from tests.kernels.examples import Example
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED

pytestmark = pytest.mark.source_only

# Numbers of a call that Triton's interpreter takes a second for; tests of each operation interpret larger ones.
LARGEST_TO_INTERPRET = {"attention": 300, "selective_scan": 600, "selective_scan_step": 600}
# What a backend leaves to others on a CPU: parts of the names of samples, which end in their precision.
REFUSED = {
    ("attention", "sdpa"): ["clip and biased sinks", "lengths, window, sinks, clip"],
    ("attention_step", "sdpa"): ["window, sinks, clip"],
    ("flex_attention", "sdpa"): ["scores", "both, and lengths"],
    ("flex_attention_step", "sdpa"): ["scores"],
    ("linear", "onednn"): ["float16", "bfloat16", "float64"],
}


def test_sample_calls_match_the_float64_reference(case):
    """Odd and large sizes, every option, each precision, odd memory, extreme numbers, memory full of NaN."""
    in_float32 = case.device == "cuda" or case.backend == "triton"
    refused = [*REFUSED.get((case.operation, case.backend), []), *(["float64"] if in_float32 else [])]
    for example in samples.sample_calls(case.operation, case.device):
        size = sum(x.numel() for x in example.tensors.values())
        if INTERPRETED and size > LARGEST_TO_INTERPRET.get(case.operation, 20_000):
            continue
        assert case.check(example) != any(part in example.name for part in refused), example.name


def test_gradients_pass_gradcheck(case_or_eager):
    example = case_or_eager.small(torch.float64)
    if not case_or_eager.with_gradients(example):
        return
    fixed = {name: x for name, x in example.tensors.items() if name not in example.gradients}

    def call(*leaves):
        named = dict(zip(example.gradients, leaves, strict=True))
        return example.call(**fixed, **named, backend=case_or_eager.backend)

    leaves = [example.tensors[name].clone().requires_grad_() for name in example.gradients]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


class Recorded(TorchDispatchMode):
    """The calls of our operators that torch sees, the last of each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[torch._ops.OpOverload, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "amago_kernels":
            self.calls[func] = args
        return func(*args, **(kwargs or {}))


def test_operators_pass_opcheck(case):
    example = case.small()
    with Recorded() as recorded:
        testing.results(example, case.backend, gradients=case.with_gradients(example))
    for operator, arguments in recorded.calls.items():
        differentiable = not operator.name().endswith("_backward")
        arguments = [
            x.detach().clone().requires_grad_(differentiable and x.is_floating_point())
            if isinstance(x, Tensor)
            else x
            for x in arguments
        ]
        torch.library.opcheck(operator, tuple(arguments))


def test_calls_compile_to_one_graph_gradients_included(case):
    example = case.small()
    gradients = case.with_gradients(example)
    plain = testing.results(example, case.backend, gradients=gradients)
    torch._dynamo.reset()
    compiled = dataclasses.replace(
        example, call=torch.compile(example.call, fullgraph=True, backend="aot_eager")
    )
    torch.testing.assert_close(testing.results(compiled, case.backend, gradients=gradients), plain)


DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16, torch.float64])
SEEDS = 4 if INTERPRETED else 12


def random_two_hot(operation: str, draw: random.Random, **kwargs) -> Example:
    rows = [draw.choice([1, 2, 3, 5]) for _ in range(draw.randint(0, 4))]
    n = draw.choice([2, 3, 7, 16, 31, 64, 129, 255])
    bins = Bins(-(10.0 ** draw.randint(-1, 4)), 10.0 ** draw.randint(-1, 4), n, symlog=draw.random() < 0.7)
    if operation != "two_hot_mean":
        kwargs |= {"mask": draw.random() < 0.5, "weight": draw.random() < 0.5}
    if operation == "hl_gauss_cross_entropy":
        kwargs["sigma"] = 10.0 ** draw.uniform(-1, 1)
    return examples.two_hot(operation, rows, bins, size=10.0 ** draw.uniform(-1, 2), **kwargs)


def random_attention(draw: random.Random, **kwargs) -> Example:
    sizes = [
        draw.choice(choice) for choice in ([1, 3], [1, 5, 16, 34], [1, 3], [8, 16, 24, 40, 72, 104, 120])
    ]
    options = {
        "window": draw.choice([None, 0, 3, 20]),
        "sink": draw.choice([0, 1, 50]),
        "sink_bias": draw.choice([0.0, -1.5]),
        "logit_clip": draw.choice([None, 0.5]),
        "scale": draw.choice([0.3, -0.5, 0.0]),
    }
    taken = {name: x for name, x in options.items() if draw.random() < 0.5}
    return examples.attention(
        *sizes, ragged=draw.random() < 0.5, causal=draw.random() < 0.5, **taken, **kwargs
    )


def random_step(draw: random.Random, **kwargs) -> Example:
    sizes = [draw.choice(choice) for choice in ([1, 4, 9], [1, 2, 7, 30], [1, 3], [2, 8, 18, 24, 56, 128])]
    options = {
        "seen": draw.choice([0, 3, 100]),
        "sink": draw.choice([1, 50]),
        "sink_bias": -1.5,
        "logit_clip": 0.5,
        "scale": draw.choice([0.3, -0.5]),
        "rotary_base": 100.0,
    }
    taken = {name: x for name, x in options.items() if draw.random() < 0.4}
    return examples.attention_step(*sizes, **taken, **kwargs)


def _far(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score - 0.1 * (h + b) * (q_idx - kv_idx)


def _third(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (q_idx + kv_idx + b) % 3 != 1


def random_flex(draw: random.Random, step: bool, **kwargs) -> Example:
    functions = draw.choice(
        [{"score_mod": _far}, {"mask_mod": _third}, {"score_mod": _far, "mask_mod": _third}]
    )
    if step:
        return examples.attention_step(3, draw.choice([1, 6]), dim=8, **functions, **kwargs)
    return examples.attention(2, draw.choice([1, 6, 20]), dim=8, ragged=True, **functions, **kwargs)


def random_scan(draw: random.Random, step: bool, **kwargs) -> Example:
    sizes = [draw.choice(choice) for choice in ([1, 3], [1, 5, 33], [1, 4, 17])]
    if step:
        return examples.selective_scan_step(*sizes, **kwargs)
    left_out = [name for name in ("D", "z", "delta_bias") if draw.random() < 0.3]
    length = draw.choice([1, 2, 15, 16, 17] if INTERPRETED else [1, 2, 15, 16, 17, 50])
    flags = {name: draw.random() < 0.5 for name in ("initial", "last_state")}
    softplus = "delta_bias" not in left_out
    example = examples.selective_scan(
        *sizes, length, left_out=left_out, delta_softplus=softplus, **flags, **kwargs
    )
    if not softplus:  # a step is not negative: states would grow beyond all numbers
        example.tensors["delta"].abs_()
    return example


def random_linear(draw: random.Random, **kwargs) -> Example:
    sizes = [draw.choice([1, 2, 31, 64, 130]) for _ in range(3)]
    return examples.linear(*sizes, leaky=draw.choice([None, 0.2, 1.0]), **kwargs)


MAKERS: dict[str, Callable[..., Example]] = {
    "attention": random_attention,
    "attention_step": random_step,
    "flex_attention": partial(random_flex, step=False),
    "flex_attention_step": partial(random_flex, step=True),
    "linear": random_linear,
    "selective_scan": partial(random_scan, step=False),
    "selective_scan_step": partial(random_scan, step=True),
    "two_hot_cross_entropy": partial(random_two_hot, "two_hot_cross_entropy"),
    "hl_gauss_cross_entropy": partial(random_two_hot, "hl_gauss_cross_entropy"),
    "two_hot_mean": partial(random_two_hot, "two_hot_mean"),
}


def elsewhere(x: Tensor, draw: random.Random) -> Tensor:
    """x in other memory: axes in another order, gaps of NaN, or an axis of stride 0."""
    kind = draw.choice(["as it is", "shuffled", "gaps", "repeated"])
    if not x.dim() or kind == "as it is":
        return x
    if kind == "shuffled":
        order = draw.sample(range(x.dim()), x.dim())
        return x.permute(order).contiguous().permute([order.index(axis) for axis in range(x.dim())])
    if kind == "gaps":
        return examples.strided(x)
    axis = draw.randrange(x.dim())
    return x.narrow(axis, 0, min(1, x.shape[axis])).expand_as(x)


def random_example(operation: str, seed: int, device: str = "cpu") -> Example:
    """A call of random sizes, options, precision and memory."""
    draw = random.Random(f"{operation} {seed}")
    example = MAKERS[operation](draw, device=device, dtype=draw.choice(DTYPES), seed=seed)
    # A ring's memory is its own: nothing in it is repeated.
    tensors = {
        name: x if name in ("keys", "values") else elsewhere(x, draw) for name, x in example.tensors.items()
    }
    return dataclasses.replace(example, name=f"seed {seed}, {example.name}", tensors=tensors)


def test_random_calls_match_the_float64_reference(case):
    taken = [case.check(random_example(case.operation, seed, case.device)) for seed in range(SEEDS)]
    assert any(taken)
