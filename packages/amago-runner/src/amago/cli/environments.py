"""Environments of the command line: finds a builtin environment or a Gymnasium id by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from amago.cli.options import UsageProblem
from amago.envs import AMAGOEnv
from amago.envs.registry import did_you_mean
from amago.nets.specs import as_action_spec
from amago.nets.tstep_encoders import tstep_encoder_for

# Context length for Gymnasium ids; most are Markovian. Builtin environments need memory of the whole episode.
_MAX_DEFAULT_CONTEXT = 128
_EVALUATION_STEPS_WITHOUT_LIMIT = 1000


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A builtin environment: its module, default arguments, and the number of steps of an episode."""

    module: str
    defaults: Mapping[str, Any]
    time_limit: Callable[[Any], int]

    def load(self, name: str) -> Callable[..., Any]:
        """The environment's class."""
        cls: Callable[..., Any] = getattr(importlib.import_module(self.module), name)
        return cls


_TMAZE = Builtin(
    module="amago.envs.builtin.tmaze",
    defaults={"corridor_length": 20, "penalty": -0.05},
    time_limit=lambda env: int(env.episode_length),
)
BUILTINS: dict[str, Builtin] = {
    "MetaFrozenLake": Builtin(
        module="amago.envs.builtin.toy_gym",
        defaults={"size": 3, "k_episodes": 5},
        time_limit=lambda env: int(env.k_episodes * env.max_episode_steps),
    ),
    "RoomKeyDoor": Builtin(
        module="amago.envs.builtin.toy_gym",
        defaults={},
        time_limit=lambda env: int(env.meta_rollout_horizon),
    ),
    "TMazeAltPassive": _TMAZE,
    "TMazeAltActive": _TMAZE,
}


@dataclass(frozen=True, kw_only=True)
class EnvMaker:
    """Makes an environment when called; the `make_train_env` of an Experiment.

    A dataclass and no closure, so worker processes can receive it and run.json can hold it.

    Attributes:
        name: a key of `BUILTINS` or a complete Gymnasium id; also the environment's name in metrics.
        args: keyword arguments of the environment, the builtin defaults included.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> gymnasium.Env[Any, Any]:
        """A new environment, not wrapped for the agent."""
        if self.name in BUILTINS:
            env: gymnasium.Env[Any, Any] = BUILTINS[self.name].load(self.name)(**self.args)
            return env
        return gymnasium.make(self.name, **self.args)

    def __call__(self) -> AMAGOEnv:
        return AMAGOEnv(self.make(), env_name=self.name.rpartition(":")[2])


def resolve_environment(name: str, args: Mapping[str, Any]) -> EnvMaker:
    """The maker of the environment with this name and these arguments.

    Args:
        name: a key of `BUILTINS`, or a Gymnasium id: "CartPole-v1", "CartPole" for the newest version, or
            "package:Id-v0" for an id that a package registers when it is imported.

    Raises:
        UsageProblem: an unknown environment; suggests the most similar one.
    """
    if name in BUILTINS:
        return EnvMaker(name=name, args={**BUILTINS[name].defaults, **args})
    module, colon, env_id = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        namespace, base, version = parse_env_id(env_id)
        latest = find_highest_version(namespace, base)
        if version is None and latest is not None:
            env_id = f"{env_id}-v{latest}"
        return EnvMaker(name=f"{module}{colon}{gymnasium.spec(env_id).id}", args=dict(args))
    except ImportError as error:
        raise UsageProblem(f"the module of {name!r} cannot be imported: {error}", "ENV") from error
    except gymnasium.error.Error as error:
        hint = did_you_mean(env_id, [*BUILTINS, *gymnasium.registry])
        raise UsageProblem(
            f"there is no environment {env_id!r}.{hint} Builtin are {', '.join(BUILTINS)}; any Gymnasium id works "
            "too, as PACKAGE:ID if another package registers it.",
            "ENV",
        ) from error


@dataclass(frozen=True, kw_only=True)
class EnvFacts:
    """Properties of an environment that default settings depend on.

    Attributes:
        time_limit: maximum length of an episode in steps; None if there is no limit.
        needs_memory: the agent needs the whole episode as context.
        action_kind: "discrete", "multidiscrete", "multibinary" or "box".
        tstep_encoder: the name of the timestep encoder for the observation space.
    """

    time_limit: int | None
    needs_memory: bool
    action_kind: str
    tstep_encoder: str

    @property
    def max_seq_len(self) -> int:
        """Default context length in timesteps."""
        if self.time_limit is None:
            return _MAX_DEFAULT_CONTEXT
        return self.time_limit if self.needs_memory else min(self.time_limit, _MAX_DEFAULT_CONTEXT)

    @property
    def evaluation_steps(self) -> int:
        """Steps in which every actor finishes at least one episode; a guess if there is no time limit."""
        return (self.time_limit or _EVALUATION_STEPS_WITHOUT_LIMIT) + 1


def inspect_environment(maker: EnvMaker) -> EnvFacts:
    """Makes the environment once and reads its properties.

    Raises:
        UsageProblem: the environment cannot be made with these arguments, or has unsupported spaces.
    """
    try:
        env = maker.make()
    except (TypeError, ValueError, AssertionError, ImportError, gymnasium.error.Error) as error:
        raise UsageProblem(f"{maker.name} cannot be made: {error}", "ENV") from error
    try:
        wrapped = AMAGOEnv(env, env_name=maker.name)
        builtin = BUILTINS.get(maker.name)
        if builtin is not None:
            limit: int | None = builtin.time_limit(env.unwrapped)
        else:
            limit = None if env.spec is None else env.spec.max_episode_steps
        return EnvFacts(
            time_limit=limit,
            needs_memory=builtin is not None,
            action_kind=as_action_spec(wrapped.action_space).kind,
            tstep_encoder=tstep_encoder_for(wrapped.observation_space),
        )
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{maker.name} is not supported: {error}", "ENV") from error
    finally:
        env.close()
