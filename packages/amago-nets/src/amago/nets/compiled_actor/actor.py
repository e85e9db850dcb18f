"""`CompiledActor`: an agent's encoders and actor as one C++ call per timestep; and how actors become operations.

Only the policy of the last discount acts, so only its parameters are computed.

Shapes: B rows, P parameters of the action distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from amago.kernels.acting import Program, unavailable
from amago.nets.actor_critic.actor import Actor, ResidualActor, ResidualBlock
from amago.nets.compiled_actor.encoders import HiddenState, TstepInputs
from amago.nets.compiled_actor.translation import (
    Builder,
    NotTranslatedError,
    activation_of,
    layer_and_norm,
    require_plain,
    translates,
)
from amago.nets.policy_dists.base import tanh_bounded_positive
from amago.nets.policy_dists.discrete import Discrete, effective_floor
from amago.nets.policy_dists.gaussian import TanhGaussian
from amago.nets.policy_dists.multidiscrete import MultiDiscrete


@dataclass(frozen=True, slots=True)
class ActionOutput:
    """The output of a program for each row.

    Args:
        width: elements per row.
        dtype: dtype of the elements.
        noise: draws the noise (B, width) that sampling takes; None if the output is not an action, but the
            parameters of its distribution.
    """

    width: int
    dtype: torch.dtype
    noise: Callable[[int, int], Tensor] | None


def _last_discount(module: Actor | ResidualActor) -> slice:
    """The outputs of an actor that are the parameters of the last discount's policy."""
    return slice(-module.policy_dist.input_dimension, None)


@translates(Actor)
def actor(builder: Builder, module: Actor, x: int) -> ActionOutput:
    """The MLP and the choice of an action."""
    return _action(
        builder, module.policy_dist, builder.translate(module.base, x, outputs=_last_discount(module))
    )


@translates(ResidualActor)
def residual_actor(builder: Builder, module: ResidualActor, x: int) -> ActionOutput:
    """The residual network and the choice of an action."""
    x = builder.translate(module.inp, x)
    for block in module.residual_blocks:
        x = builder.translate(block, x)
    params = builder.translate(module.out, x, outputs=_last_discount(module))
    return _action(builder, module.policy_dist, params)


@translates(ResidualBlock)
def residual_block(builder: Builder, module: nn.Sequential, x: int) -> int:
    """A block of the residual actor."""
    hidden = layer_and_norm(builder, module[0], module[1], x, activation_of(module[2]))
    return layer_and_norm(builder, module[3], module[4], hidden, add=x)


def _action(builder: Builder, dist: Any, params: int) -> ActionOutput:
    """Chooses the action if the program can sample from the distribution, else outputs its parameters."""
    parts = dist.components if type(dist) is MultiDiscrete else [dist]
    if all(type(part) is Discrete for part in parts):
        bounds = [
            (part.d_action, effective_floor(part.clip_prob_low, part.d_action), part.clip_prob_high)
            for part in parts
        ]
        builder.program.choose(params, bounds)
        return ActionOutput(len(parts), torch.int64, torch.rand)
    if type(dist) is TanhGaussian and dist.std_activation is tanh_bounded_positive:
        builder.program.squash(params, dist.std_low, dist.std_high)
        return ActionOutput(dist.d_action, torch.float32, torch.randn)
    builder.program.emit(params)
    return ActionOutput(dist.input_dimension, torch.float32, None)


class ActingAgent(Protocol):
    """The part of an agent that a `CompiledActor` uses."""

    tstep_encoder: Any
    traj_encoder: Any
    actor: Any

    def get_actions(
        self,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        sample: bool = True,
    ) -> tuple[Tensor, Any]:
        """Acts by the modules."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A program and its interface.

    Args:
        inputs: None if the timestep encoder runs as a module; its output is the only input then.
    """

    program: Program
    inputs: TstepInputs | None
    hidden_state: HiddenState
    output: ActionOutput


class CompiledActor:
    """Acts for an agent on a CPU with one C++ call per timestep, on a copy of its weights and settings.

    What it computes equals `agent.get_actions` with the weights that the agent had at the last `refresh`.
    Inputs that the program does not accept (several timesteps, another device, autocast, a foreign hidden
    state, a step without position embedding) are passed to `agent.get_actions`.

    Args:
        agent: agent in eval mode, on the CPU.
        choose_actions: maps a distribution and `sample` to actions, for distributions that C++ cannot sample from.
        obstacle: returns why the agent cannot be compiled, None if it can.

    Attributes:
        reason: why there is no program; None if there is one.
    """

    def __init__(
        self,
        agent: ActingAgent,
        choose_actions: Callable[[Any, bool], Tensor],
        obstacle: Callable[[], str | None],
    ) -> None:
        self.reason: str | None = None
        self._agent = agent
        self._choose_actions = choose_actions
        self._obstacle = obstacle
        self._compiled: _Compiled | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Recompiles the agent with its current modules, weights and settings.

        Returns:
            Whether there is a program. If not, `reason` says why, and `get_actions` runs the modules.
        """
        self._compiled = None
        reasons = unavailable()
        self.reason = "; ".join(reasons) if reasons else self._obstacle()
        if self.reason is None:
            try:
                with torch.no_grad():
                    self._compiled = _compile(self._agent)
            except NotTranslatedError as error:
                self.reason = str(error)
        return self._compiled is not None

    def get_actions(
        self,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        sample: bool = True,
    ) -> tuple[Tensor, Any]:
        """Actions (B, 1, ·) and the next hidden state; arguments and errors as `Agent.get_actions`.

        Raises:
            RuntimeError: if an action cannot be drawn, because the policy's probabilities are not finite.
        """
        compiled = self._compiled
        if compiled is not None and rl2s.is_cpu and not torch.is_autocast_enabled("cpu"):
            result = self._step(compiled, obs, rl2s, time_idxs, hidden_state, sample)
            if result is not None:
                return result
        return self._agent.get_actions(
            obs=obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=hidden_state, sample=sample
        )

    def _step(
        self,
        compiled: _Compiled,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any,
        sample: bool,
    ) -> tuple[Tensor, Any] | None:
        """Runs the program; None if it does not accept its inputs."""
        batch = rl2s.shape[0]
        if time_idxs.shape != (batch, 1, 1) or time_idxs.dtype != torch.int64 or not time_idxs.is_cpu:
            return None
        if compiled.inputs is None:
            with torch.no_grad():
                encoded: Tensor = self._agent.tstep_encoder(obs=obs, rl2s=rl2s)
            inputs: list[Tensor] | None = _inputs(
                {"encoded": encoded}, rl2s, [("encoded", compiled.program.widths[0])]
            )
        else:
            inputs = _inputs(obs, rl2s, compiled.inputs)
        state = compiled.hidden_state(batch, hidden_state)
        if inputs is None or state is None:
            return None
        buffers, hidden_state = state
        output = compiled.output
        noise = output.noise(batch, output.width) if sample and output.noise is not None else None
        out = torch.empty(batch, 1, output.width, dtype=output.dtype)
        addresses = [(x.data_ptr(), x.numel() // batch) for x in inputs]
        if not compiled.program.run(batch, addresses, time_idxs.contiguous(), buffers, noise, out):
            return None
        if output.noise is not None:
            return out, hidden_state
        with torch.no_grad():
            dist = self._agent.actor.policy_dist(out.unsqueeze(2))  # (B, 1, 1)
            return self._choose_actions(dist, sample), hidden_state


def _inputs(obs: Mapping[str, Tensor], rl2s: Tensor, wanted: TstepInputs) -> list[Tensor] | None:
    """Contiguous float32 inputs of one timestep; None if one is missing or has another shape."""
    batch, found = rl2s.shape[0], []
    for key, width in wanted:
        x = rl2s if key is None else obs.get(key)
        if x is None or not x.is_cpu or x.shape[:2] != (batch, 1) or x.numel() != batch * width:
            return None
        found.append(x.to(torch.float32).contiguous())
    return found


def _compile(agent: ActingAgent) -> _Compiled:
    """Builds the program of an agent.

    Raises:
        NotTranslatedError: if the trajectory encoder or the actor has no translation.
    """
    require_plain(agent.traj_encoder)
    require_plain(agent.actor)
    builder, x, inputs = _timestep_encoder(agent.tstep_encoder)
    x, hidden_state = builder.translate(agent.traj_encoder, x)
    output = builder.translate(agent.actor, x)
    builder.program.build()
    return _Compiled(builder.program, inputs, hidden_state, output)


def _timestep_encoder(encoder: Any) -> tuple[Builder, int, TstepInputs | None]:
    """Translates the timestep encoder, or reserves an input for the output of the module."""
    builder = Builder()
    try:
        require_plain(encoder)
        return builder, *builder.translate(encoder)
    except NotTranslatedError:
        if encoder.training:
            raise
        builder = Builder()
        return builder, builder.program.gather([(0, encoder.emb_dim, 0)]), None
