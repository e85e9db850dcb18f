"""How actors are translated: up to the action where the program can choose it, else to the parameters.

Only the last discount's policy acts, so only its parameters are computed.

Shapes: B rows, P parameters of the action distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from amago.nets.actor_critic.actor import Actor, ResidualActor, ResidualBlock
from amago.nets.policy_dists.base import tanh_bounded_positive
from amago.nets.policy_dists.discrete import Discrete, effective_floor
from amago.nets.policy_dists.gaussian import TanhGaussian
from amago.nets.policy_dists.multidiscrete import MultiDiscrete
from amago.nets.stepping.builder import Builder, NotTranslatedError, translates
from amago.nets.stepping.layers import activation_of, layer_and_norm


@dataclass(frozen=True, slots=True)
class Ending:
    """What the program leaves behind for each row.

    Args:
        width: numbers per row of the output.
        dtype: of the output.
        draw: the noise (B, width) that sampling takes; None if the output is the distribution's parameters.
    """

    width: int
    dtype: torch.dtype
    draw: Callable[[int, int], Tensor] | None


@translates(Actor)
def actor(builder: Builder, module: Actor, x: int) -> Ending:
    """The MLP's last outputs, and the choice."""
    return choice(builder, module, builder.translate(module.base, x, outputs=last_discount(module)))


@translates(ResidualActor)
def residual_actor(builder: Builder, module: ResidualActor, x: int) -> Ending:
    """The residual network's last outputs, and the choice."""
    x = builder.translate(module.inp, x)
    builder.visit(module.residual_blocks)
    for block in module.residual_blocks:
        x = builder.translate(block, x)
    return choice(builder, module, builder.translate(module.out, x, outputs=last_discount(module)))


@translates(ResidualBlock)
def residual_block(builder: Builder, module: nn.Sequential, x: int) -> int:
    """A block of the residual actor."""
    hidden = layer_and_norm(builder, module[0], module[1], x, activation_of(builder, module[2]))
    return layer_and_norm(builder, module[3], module[4], hidden, add=x)


def last_discount(module: Actor | ResidualActor) -> slice:
    """Which of a network's outputs are the parameters of the last discount's policy."""
    return slice(-module.policy_dist.input_dimension, None)


def choice(builder: Builder, module: Actor | ResidualActor, params: int) -> Ending:
    """Draws the action if the program knows the distribution, else hands out its parameters."""
    builder.watch.entry(vars(module), "policy_dist")
    dist: Any = module.policy_dist
    if type(dist) is Discrete:
        builder.program.choose(params, [_component(builder, dist)])
        return Ending(1, torch.int64, torch.rand)
    if type(dist) is MultiDiscrete:
        parts = builder.setting(dist, "_parts")
        builder.program.choose(params, [_component(builder, part) for part in parts])
        return Ending(len(parts), torch.int64, torch.rand)
    if type(dist) is TanhGaussian and builder.setting(dist, "std_activation") is tanh_bounded_positive:
        builder.program.squash(params, builder.setting(dist, "std_low"), builder.setting(dist, "std_high"))
        return Ending(dist.d_action, torch.float32, torch.randn)
    builder.program.emit(params)
    return Ending(dist.input_dimension, torch.float32, None)


def _component(builder: Builder, dist: Discrete) -> tuple[int, float, float]:
    """Number of choices, and the bounds of their probabilities."""
    if type(dist) is not Discrete:
        raise NotTranslatedError(f"{type(dist).__name__} has no translation")
    low = effective_floor(builder.setting(dist, "clip_prob_low"), dist.d_action)
    return dist.d_action, low, builder.setting(dist, "clip_prob_high")
