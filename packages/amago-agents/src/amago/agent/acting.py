"""From a policy to the actions that environments take: through a step program, or from a distribution.

Shapes: B rows, N choices of one component; distributions have the batch shape (B, 1, G), G discounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from amago.agent.base import BaseAgent
from amago.nets.specs import ActionSpec
from amago.nets.stepping import BegunStep, StepPolicy


class BegunActions:
    """Actions that are being computed; no step is taken before `finish`.

    Args:
        agent: acts.
        step: of its step program.
        sample: draw from the policy.
    """

    def __init__(self, agent: BaseAgent, step: BegunStep, sample: bool) -> None:
        self._agent = agent
        self._step = step
        self._sample = sample

    @property
    def hidden_state(self) -> Any:
        """The one after the step; not to be read before `finish`, but the next actions may be begun with it."""
        return self._step.hidden_state

    def release(self, rows: slice, starts: Tensor | None = None) -> bool:
        """Lets these rows be computed, of actions that were begun in parts; all rows before them were released.

        Args:
            rows: they hold the inputs that they are to be computed from.
            starts: (R,) those of them where an episode begins: the hidden state forgets them, in place. None if
                there are none.

        Returns:
            False if that cannot be; then what was begun was dropped.
        """
        return self._step.release(rows, starts)

    def drop(self) -> None:
        """Gives up, and the random numbers back; nothing happens after `finish`."""
        self._step.drop()

    def finish(self) -> tuple[Tensor, Any]:
        """Waits for what `get_actions` returns.

        Raises:
            RuntimeError: no action can be drawn, as the policy's probabilities are not finite.
        """
        chosen = self._step.finish()
        if chosen.is_action:
            return chosen.output, chosen.hidden_state
        agent: Any = self._agent
        with torch.no_grad():
            dist = agent.actor.policy_dist(chosen.output.unsqueeze(2))  # (B, 1, 1)
            return choose_actions(dist, agent.action_spec, self._sample), chosen.hidden_state


def is_replaced(agent: BaseAgent, method: str, original: Any) -> bool:
    """Whether a subclass, or somebody who patched the class or the agent, has put another method in its place."""
    return getattr(type(agent), method) is not original or method in vars(agent)


def begin_by_program(
    agent: BaseAgent,
    policy: StepPolicy,
    obs: Mapping[str, Tensor],
    rl2s: Tensor,
    time_idxs: Tensor,
    hidden_state: Any,
    sample: bool,
    in_parts: bool = False,
) -> BegunActions | None:
    """Begins `get_actions` by the agent's step program; None where it cannot be done so.

    The program stands for the modules of the agent, so an agent that computes its states otherwise has none.
    """
    if agent.training or type(agent).get_state_embedding is not BaseAgent.get_state_embedding:
        return None
    modules: Any = agent._modules  # looked up at every step: nn.Module's own attributes take a way round
    parts = modules["tstep_encoder"], modules["traj_encoder"], modules["actor"]
    step = policy.begin(parts, obs, rl2s, time_idxs, hidden_state, sample, in_parts)
    return None if step is None else BegunActions(agent, step, sample)


def choose_actions(dist: Any, spec: ActionSpec, sample: bool) -> Tensor:
    """The actions of the last discount's policy.

    Args:
        dist: the policies of all discounts, from the actor.
        spec: of the action space, which says what the actions look like.
        sample: draw from the policy; else the likeliest choice, the bits with p > 0.5, or the distribution's mean.

    Returns:
        (B, 1, 1) int64 for "discrete", (B, 1, components) int64 for "multidiscrete", (B, 1, A) int8 for
        "multibinary", and (B, 1, A) float32 in [-1, 1] for "box".
    """
    if spec.kind in ("discrete", "multidiscrete"):
        probs = dist.probs[:, :, -1].split(spec.sizes, dim=-1)
        return torch.cat([_choose(p, sample) for p in probs], dim=-1)
    if spec.kind == "multibinary":
        bits: Tensor = dist.sample() if sample else dist.probs > 0.5
        return bits[:, :, -1].to(torch.int8)
    numbers: Tensor = dist.sample() if sample else dist.mean
    return numbers[:, :, -1].float()


def _choose(probs: Tensor, sample: bool) -> Tensor:
    """An index per row: probabilities (B, 1, N) -> int64 (B, 1, 1)."""
    if not sample:
        return probs.argmax(dim=-1, keepdim=True)
    return torch.multinomial(probs.flatten(0, 1), 1).view(*probs.shape[:2], 1)


def compile_actor(agent: BaseAgent) -> Any:
    """None: the agent acts by its modules."""
    return None
