"""Filters of the offline actor loss: weights f(A(s, a)) of log pi(a | s) as functions of the advantage.

Each maps advantages of any shape to weights of the same shape; all are gin-configurable. An agent passes
advantages (B, T, G, 1) in the shape of the batch, with 0 in padding.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import gin
import torch
import torch.nn.functional as F
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
# Typed, since gin ships no types: its decorator alone would turn the filters into `Any` for users' type checkers.
_configurable: Callable[[Function], Function] = gin.configurable(module="amago.agent")


def with_bindings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its current gin bindings applied.

    gin looks bindings up under a lock at every call, which is slow and which torch.compile cannot trace. Functions
    that gin does not know, or knows only in a scope, are returned unchanged.
    """
    try:
        bindings = gin.get_bindings(function)
    except ValueError:
        return function
    return functools.partial(inspect.unwrap(function), **bindings)


@_configurable
def binary_filter(adv: Tensor, threshold: float = 0.0) -> Tensor:
    """1 where the advantage exceeds `threshold`, else 0 (CRR "binary", Wang et al. 2020, eq. 3)."""
    return (adv > threshold).to(adv.dtype)


@_configurable
def exp_filter(
    adv: Tensor,
    beta: float = 1.0,
    clip_adv_low: float | None = None,
    clip_adv_high: float | None = None,
    clip_weights_low: float | None = 1e-7,
    clip_weights_high: float | None = None,
) -> Tensor:
    """exp(beta * advantage) (CRR "exp", Wang et al. 2020, eq. 4; AWAC, Nair et al. 2020, eq. 13).

    Args:
        adv: advantages.
        beta: inverse temperature.
        clip_adv_low: lower bound of advantages; None for no bound.
        clip_adv_high: upper bound of advantages.
        clip_weights_low: lower bound of weights.
        clip_weights_high: upper bound of weights.
    """
    weights = torch.exp(beta * _clamp(adv, clip_adv_low, clip_adv_high))
    return _clamp(weights, clip_weights_low, clip_weights_high)


@_configurable
def leaky_relu_filter(
    adv: Tensor,
    beta: float = 2.0,
    tau: float = 0.01,
    neg_slope: float = 0.05,
    target_f0: float = 0.01,
    clip_weights_low: float | None = 1e-7,
    clip_weights_high: float | None = 10.0,
    add_binary: bool = True,
) -> Tensor:
    """leaky_relu((advantage - tau) / beta), shifted so that f(0) = target_f0, optionally plus the binary filter.

    Args:
        adv: advantages.
        beta: advantage per unit of weight above `tau`.
        tau: advantage at which the slope changes.
        neg_slope: slope below `tau`, relative to the slope above.
        target_f0: weight at advantage 0, before the binary filter is added.
        clip_weights_low: lower bound of weights; None for no bound.
        clip_weights_high: upper bound of weights.
        add_binary: add 1 where the advantage is positive.
    """
    knee = F.leaky_relu(torch.tensor(-tau / beta), neg_slope).item()
    weights = F.leaky_relu((adv - tau) / beta, neg_slope) + (target_f0 - knee)
    if add_binary:
        weights = weights + (adv > 0.0).to(adv.dtype)
    return _clamp(weights, clip_weights_low, clip_weights_high)


def _clamp(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """`torch.clamp` with optional bounds."""
    return x if low is None and high is None else x.clamp(low, high)
