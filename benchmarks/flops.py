"""How many floating-point operations one update takes, counted from the shapes of its matrix products.

The count is for the factored form: the critics' first layer is applied to a state once, not once per discount and
action sample, and heads see no padding. A product of (rows, d_in) and (d_in, d_out) takes 2 * rows * d_in * d_out
operations; with a backward pass the gradients of its input and of its weight take as many again each. Attention is
counted too. Sums, activations, norms, the power iterations of SigmaReparam and the optimizer are not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

FORWARD = 1  # without gradient
WEIGHT = 2  # forward, and the gradient of the weight
INPUT = 2  # forward, and the gradient of the input
BOTH = 3  # forward, and both gradients


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An update of `Agent` or, with `bins`, `MultiTaskAgent`, with the networks' default widths.

    Args:
        action_dim: A, width of the action representation.
        discrete: whether actions are one choice among A.
        bins: classes of the critics, 0 for critics that regress.
        batch_size: sequences.
        length: timesteps of each.
        obs_dim: numbers in an observation.
        critics: C.
        discounts: G.
        samples: actions sampled for the policy's value.
        layers: of the Transformer.
    """

    action_dim: int
    discrete: bool
    bins: int = 0
    batch_size: int = 24
    length: int = 128
    obs_dim: int = 32
    critics: int = 4
    discounts: int = 7
    samples: int = 1
    layers: int = 3


class _Count:
    """Sums up products by the part of the update that they belong to."""

    def __init__(self) -> None:
        self.flop: dict[str, float] = defaultdict(float)

    def product(self, part: str, rows: int, d_in: int, d_out: int, passes: int) -> None:
        self.flop[part] += 2.0 * rows * d_in * d_out * passes

    def mlp(self, part: str, rows: int, widths: list[int], passes: int, first: int | None = None) -> None:
        """Layers between neighbouring widths; `first` are the passes of the first layer, if others."""
        for i, (d_in, d_out) in enumerate(itertools.pairwise(widths)):
            self.product(part, rows, d_in, d_out, first if i == 0 and first is not None else passes)


def _encoders(count: _Count, work: Workload) -> None:
    """The timestep encoder and the Transformer, on every timestep."""
    rows, heads, width = work.batch_size * work.length, 8, 256
    inputs = work.obs_dim + 1 + work.action_dim
    count.mlp("timestep encoder", rows, [inputs, 512, 512, width], BOTH, first=WEIGHT)
    count.product("transformer", rows, width, width, BOTH)
    for _ in range(work.layers):
        for d_in, d_out in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
            count.product("transformer", rows, d_in, d_out, BOTH)
        # Scores and sums over values, of the pairs that a causal mask leaves; two gradients each, and the backward
        # pass computes the scores again.
        pairs = work.batch_size * heads * work.length * (work.length + 1) // 2
        count.flop["attention"] += 2.0 * pairs * (width // heads) * (2 + 5)


def _actors(count: _Count, work: Workload) -> None:
    """The actor and its target, on every transition."""
    rows = work.batch_size * (work.length - 1)
    outputs = work.discounts * work.action_dim * (1 if work.discrete else 2)
    count.mlp("actor", rows, [256, 256, 256, outputs], BOTH)
    count.mlp("target actor", rows, [256, 256, 256, outputs], FORWARD)


def _all_action_critics(count: _Count, work: Workload) -> None:
    """Critics with one output per discount and action: one pass serves data, value and online loss."""
    rows = work.batch_size * (work.length - 1) * work.critics
    widths = [256, 256, 256, work.discounts * work.action_dim]
    count.mlp("critics", rows, widths, BOTH)
    count.mlp("target critics", rows, widths, FORWARD)


def _state_action_critics(count: _Count, work: Workload) -> None:
    """Critics whose input is [state, discount, action]."""
    states = work.batch_size * (work.length - 1) * work.critics
    rows = states * work.discounts
    action, tail = 1 + work.action_dim, [256, 256, work.bins or 1]

    def one_pass(part: str, samples: int, *, state: int, inputs: int, hidden: int) -> None:
        count.product(part, states, 256, 256, state)
        count.product(part, samples * rows, action, 256, inputs)
        count.mlp(part, samples * rows, tail, hidden)

    one_pass("critics", 1, state=BOTH, inputs=WEIGHT, hidden=BOTH)
    one_pass("target critics", 1, state=FORWARD, inputs=FORWARD, hidden=FORWARD)
    # Regressing critics guide the actor, whose gradient passes through the action; classifying ones only judge.
    learns = FORWARD if work.bins else INPUT
    one_pass("policy's values", work.samples, state=FORWARD, inputs=learns, hidden=learns)


def count_update(work: Workload) -> dict[str, float]:
    """Floating-point operations of an update, by part."""
    count = _Count()
    _encoders(count, work)
    _actors(count, work)
    if work.discrete and not work.bins:
        _all_action_critics(count, work)
    else:
        _state_action_critics(count, work)
    return dict(count.flop)
