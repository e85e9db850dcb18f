"""Acting: the compiled form of an agent, and the choice of actions from a distribution.

Shapes: B rows, N choices of one component; distributions have the batch shape (B, 1, G), G discounts.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributions import Categorical

from amago.agent.base import BaseAgent
from amago.kernels.acting import unavailable
from amago.nets.compiled_actor import CompiledActor
from amago.nets.policy_dists import _Categorical
from amago.nets.specs import ActionSpec

# `sample` methods that draw from `probs`: drawing for the last discount alone is cheaper and has the same result.
_DRAWS_FROM_PROBS = (Categorical.sample, _Categorical.sample)

# Agents that `compile_actor` has warned about.
_warned: WeakSet[BaseAgent] = WeakSet()


def choose_actions(dist: Any, spec: ActionSpec, sample: bool) -> Tensor:
    """The actions of the last discount's policy.

    Args:
        dist: policies of all discounts, from the actor. Discrete choices are drawn from `probs`, or by `sample` if
            the class overrides it.
        spec: spec of the action space.
        sample: draw from the policy; else the most likely choice, the bits with p > 0.5, or the distribution's
            mean.

    Returns:
        (B, 1, 1) int64 for "discrete", (B, 1, components) int64 for "multidiscrete", (B, 1, A) int8 for
        "multibinary", and (B, 1, A) float32 in [-1, 1] for "box".
    """
    if sample and spec.kind == "discrete" and type(dist).sample not in _DRAWS_FROM_PROBS:
        index: Tensor = dist.sample()  # (B, 1, G) or (B, 1, G, 1)
        return index.reshape(*index.shape[:2], -1)[:, :, -1:].long()
    if spec.kind in ("discrete", "multidiscrete"):
        probs = dist.probs[:, :, -1].split(spec.sizes, dim=-1)
        return torch.cat([_choose(p, sample) for p in probs], dim=-1)
    if spec.kind == "multibinary":
        bits: Tensor = dist.sample() if sample else dist.probs > 0.5
        return bits[:, :, -1].to(torch.int8)
    values: Tensor = dist.sample() if sample else dist.mean
    return values[:, :, -1].float()


def _choose(probs: Tensor, sample: bool) -> Tensor:
    """An index per row: probabilities (B, 1, N) -> int64 (B, 1, 1)."""
    if not sample:
        return probs.argmax(dim=-1, keepdim=True)
    return torch.multinomial(probs.flatten(0, 1), 1).view(*probs.shape[:2], 1)


def compile_actor(agent: BaseAgent) -> CompiledActor | None:
    """Compiles an agent for acting on a CPU with one C++ call per timestep.

    The result has the agent's `get_actions`, on a copy of its weights. Call `refresh` after training: it copies
    the weights again, and returns False if the agent can no longer be compiled.

    Issues one UserWarning per agent if overrides or modules of the agent prevent compilation.

    Args:
        agent: agent in eval mode.

    Returns:
        None if the agent cannot be compiled: it overrides `get_actions` or `get_state_embedding`, passes
        observations to the actor, is in training mode or not on the CPU in float32, or has forward hooks or
        modules without a translation; or there is no C++ compiler, `use_backend` requests another backend, or
        autocast is enabled.
    """
    if torch.is_autocast_enabled("cpu"):
        return None

    def choose(dist: Any, sample: bool) -> Tensor:
        return choose_actions(dist, agent.action_spec, sample)

    acting: Any = agent
    compiled = CompiledActor(acting, choose, lambda: _obstacle(agent))
    if compiled.reason is None:
        return compiled
    if not agent.training and not unavailable() and agent not in _warned:
        _warned.add(agent)
        warnings.warn(
            f"the agent acts with its torch modules instead of compiled C++, because {compiled.reason}. "
            "Actions are the same, collecting is slower",
            stacklevel=2,
        )
    return None


def _obstacle(agent: BaseAgent) -> str | None:
    """Why the agent cannot be compiled, None if it can: only its encoders and its actor are translated."""
    from amago.agent.agent import Agent  # which imports this module

    name = type(agent).__name__
    if not isinstance(agent, Agent):
        return f"{name} is no Agent"
    if type(agent).get_actions is not Agent.get_actions or "get_actions" in vars(agent):
        return f"{name} overrides get_actions"
    if type(agent).get_state_embedding is not BaseAgent.get_state_embedding:
        return f"{name} overrides get_state_embedding"
    if agent.pass_obs_keys_to_actor:
        return f"{name} passes observations to its actor"
    if agent.training:
        return f"{name} is in training mode"
    return None
