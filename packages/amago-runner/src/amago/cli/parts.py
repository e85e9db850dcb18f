"""The classes of an agent, chosen by their registered names, and the gin settings that size them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from amago.agent import BaseAgent
from amago.cli.environments import EnvFacts, EnvMaker
from amago.cli.options import UsageProblem
from amago.cli.recipes import Recipe
from amago.cli_utils import switch_agent, switch_exploration, switch_traj_encoder, switch_tstep_encoder
from amago.envs.exploration import ExplorationWrapper, get_exploration_cls
from amago.experiment.gin_bindings import parameters_of, selector_of
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an Experiment builds its agent from; `bindings` are the gin settings that go with the choice."""

    agent: type[BaseAgent]
    tstep_encoder: type[TstepEncoder]
    traj_encoder: type[TrajEncoder]
    exploration: type[ExplorationWrapper]
    bindings: dict[str, Any]


def choose_parts(recipe: Recipe, facts: EnvFacts) -> Parts:
    """Looks the recipe's names up and collects their settings, the recipe's own gin settings last.

    Raises:
        UsageProblem: a name that is not registered; the nearest one is suggested.
    """
    bindings: dict[str, Any] = {}
    agent = _named("--agent", lambda: switch_agent(bindings, recipe.agent))
    seeing = recipe.tstep_encoder or facts.tstep_encoder
    tstep_encoder = _named("--tstep-encoder", lambda: switch_tstep_encoder(bindings, seeing))
    traj_encoder = _named(
        "--traj-encoder",
        lambda: switch_traj_encoder(bindings, recipe.traj_encoder, recipe.memory_size, recipe.memory_layers),
    )
    exploration = _named("--exploration", lambda: _choose_exploration(bindings, recipe, facts))
    bindings.update(_suiting_actions(agent, facts))
    bindings.update(recipe.gin)
    return Parts(
        agent=agent,
        tstep_encoder=tstep_encoder,
        traj_encoder=traj_encoder,
        exploration=exploration,
        bindings=bindings,
    )


def try_parts(parts: Parts, maker: EnvMaker, max_seq_len: int) -> None:
    """Builds agent and exploration once, with gin as it is bound now, and throws them away.

    A setting that cannot be is thus found before anything on disk is touched.

    Raises:
        UsageProblem: with what the part said of the setting.
    """
    build_agent(parts, maker, max_seq_len)


def build_agent(parts: Parts, maker: EnvMaker, max_seq_len: int) -> BaseAgent:
    """An agent for the environment, with gin as it is bound now; raises as `try_parts`."""
    env = maker()
    try:
        parts.exploration(env)
        with torch.random.fork_rng():
            return parts.agent(
                obs_space=env.observation_space,
                rl2_space=env.rl2_space,
                action_space=env.action_space,
                max_seq_len=max_seq_len,
                tstep_encoder_type=parts.tstep_encoder,
                traj_encoder_type=parts.traj_encoder,
            )
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageProblem(str(error), "the settings") from error
    finally:
        env.close()


def _suiting_actions(agent: type[BaseAgent], facts: EnvFacts) -> dict[str, Any]:
    """Samples of bits carry no gradient, so an agent that follows one by default learns from the data alone."""
    if facts.action_kind != "multibinary" or not {"online_coeff", "offline_coeff"} <= set(
        parameters_of(agent)
    ):
        return {}
    return {f"{selector_of(agent)}.online_coeff": 0.0, f"{selector_of(agent)}.offline_coeff": 1.0}


def _choose_exploration(
    bindings: dict[str, Any], recipe: Recipe, facts: EnvFacts
) -> type[ExplorationWrapper]:
    """Exploration whose schedule fits the run and whose rollouts are as long as the environment's."""
    known = parameters_of(get_exploration_cls(recipe.exploration))
    fitting: dict[str, Any] = {"steps_anneal": recipe.anneal_steps}
    if facts.time_limit is not None:
        fitting["rollout_horizon"] = facts.time_limit
    taken = {name: value for name, value in fitting.items() if name in known}
    return switch_exploration(bindings, recipe.exploration, **taken)


def _named(option: str, choose: Callable[[], T]) -> T:
    try:
        return choose()
    except ValueError as error:
        raise UsageProblem(str(error), option) from error
