"""From a name on the command line to something that makes environments.

A name is one of the builtin environments below or a gymnasium id ("CartPole-v1", "CartPole", "module:Id-v0").
An `EnvMaker` is a small frozen object rather than a closure, so that it can be sent to worker processes and
written into a run's folder.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, parse_env_id

from amago.cli.options import UsageProblem, suggestion
from amago.envs import AMAGOEnv
from amago.nets.specs import as_action_spec
from amago.nets.tstep_encoders import tstep_encoder_for

# A window this long serves a Markov environment; a builtin one is about memory and gets its whole rollout.
LONGEST_DEFAULT_SEQUENCE = 128
UNLIMITED_EVALUATION_STEPS = 1000

_MAKE_ARGUMENTS = ("render_mode", "max_episode_steps", "disable_env_checker")


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """One builtin environment: where its class is, the arguments it starts from, the length of a rollout."""

    module: str
    defaults: Mapping[str, Any]
    horizon: Callable[[Any], int]


def _lake_horizon(env: Any) -> int:
    return int(env.k_episodes * env.max_episode_steps)


def _room_horizon(env: Any) -> int:
    return int(env.meta_rollout_horizon)


def _tmaze_horizon(env: Any) -> int:
    return int(env.episode_length)


_TMAZE_DEFAULTS = {"corridor_length": 20, "penalty": -0.05}

BUILTINS: dict[str, Builtin] = {
    "MetaFrozenLake": Builtin(
        module="amago.envs.builtin.toy_gym", defaults={"size": 3, "k_episodes": 5}, horizon=_lake_horizon
    ),
    "RoomKeyDoor": Builtin(module="amago.envs.builtin.toy_gym", defaults={}, horizon=_room_horizon),
    "TMazeAltPassive": Builtin(
        module="amago.envs.builtin.tmaze", defaults=_TMAZE_DEFAULTS, horizon=_tmaze_horizon
    ),
    "TMazeAltActive": Builtin(
        module="amago.envs.builtin.tmaze", defaults=_TMAZE_DEFAULTS, horizon=_tmaze_horizon
    ),
}


@dataclass(frozen=True, kw_only=True)
class EnvMaker:
    """Makes the environment `name` with `args` when called; what `Experiment` takes as `make_train_env`.

    Attributes:
        name: a key of `BUILTINS` or a complete gymnasium id; also the environment's name in the metrics.
        args: keyword arguments of the environment, with the builtin's defaults filled in.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> gymnasium.Env[Any, Any]:
        """A new environment as gymnasium knows it, not wrapped for the agent."""
        if self.name in BUILTINS:
            env: gymnasium.Env[Any, Any] = _builtin_class(self.name)(**self.args)
            return env
        return gymnasium.make(self.name, **self.args)

    def __call__(self) -> AMAGOEnv:
        return AMAGOEnv(self.make(), env_name=self.name.rpartition(":")[2])


def resolve_environment(name: str, args: Mapping[str, Any]) -> EnvMaker:
    """The maker of the environment that `name` and `args` mean.

    Raises:
        UsageProblem: no environment has this name, or it takes no such argument; the nearest one is named.
    """
    if name in BUILTINS:
        known = [*inspect.signature(_builtin_class(name)).parameters]
        _check_arguments(name, args, known)
        return EnvMaker(name=name, args={**BUILTINS[name].defaults, **args})
    spec = _find_spec(name)
    _check_arguments(spec.id, args, _gymnasium_parameters(spec))
    module, colon, _ = name.rpartition(":")
    return EnvMaker(name=f"{module}{colon}{spec.id}", args=dict(args))


@dataclass(frozen=True, kw_only=True)
class EnvFacts:
    """What a first look at an environment tells.

    Attributes:
        time_limit: steps after which an episode ends at the latest; None where there is no limit.
        remembers_all: memory over the whole episode is what the environment is about.
        action_kind: "discrete", "multidiscrete", "multibinary" or "box".
        tstep_encoder: the name of the timestep encoder that suits the observations.
    """

    time_limit: int | None
    remembers_all: bool
    action_kind: str
    tstep_encoder: str

    @property
    def max_seq_len(self) -> int:
        """A sequence length that suits the environment, in steps."""
        if self.time_limit is None:
            return LONGEST_DEFAULT_SEQUENCE
        return self.time_limit if self.remembers_all else min(self.time_limit, LONGEST_DEFAULT_SEQUENCE)

    @property
    def evaluation_steps(self) -> int:
        """Steps in which every actor finishes at least one episode; a guess where there is no time limit."""
        return (self.time_limit or UNLIMITED_EVALUATION_STEPS) + 1


def inspect_environment(maker: EnvMaker) -> EnvFacts:
    """Makes the environment once, as a worker will, and reads what the defaults depend on.

    Raises:
        UsageProblem: the environment cannot be made with these arguments, or agents cannot act in it.
    """
    try:
        env = maker.make()
    except (TypeError, ValueError, AssertionError, ImportError, gymnasium.error.Error) as error:
        raise UsageProblem(f"{maker.name} cannot be made: {error}", "ENV") from error
    try:
        seen = AMAGOEnv(env, env_name=maker.name)
        builtin = BUILTINS.get(maker.name)
        if builtin is not None:
            limit: int | None = builtin.horizon(env.unwrapped)
        else:
            limit = None if env.spec is None else env.spec.max_episode_steps
        return EnvFacts(
            time_limit=limit,
            remembers_all=builtin is not None,
            action_kind=as_action_spec(seen.action_space).kind,
            tstep_encoder=tstep_encoder_for(seen.observation_space),
        )
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{maker.name} does not suit an agent: {error}", "ENV") from error
    finally:
        env.close()


def _builtin_class(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(BUILTINS[name].module), name)
    return found


def _find_spec(name: str) -> EnvSpec:
    module, colon, env_id = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageProblem(f"the module of {name!r} cannot be imported: {error}", "ENV") from error
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    try:
        namespace, base, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        namespace, base, version = None, env_id, None
    versions = {
        spec.version or 0: spec
        for spec in gymnasium.registry.values()
        if (spec.namespace, spec.name) == (namespace, base)
    }
    if versions and version is None:
        return versions[max(versions)]
    if versions:
        raise UsageProblem(
            f"{env_id!r} has no such version. Did you mean {versions[max(versions)].id!r}?", "ENV"
        )
    raise UsageProblem(_unknown(env_id, version), "ENV")


def _unknown(env_id: str, version: int | None) -> str:
    """The message for a name that nothing has. Versions do not count: a typo in the name matters more."""
    latest: dict[str, int] = {}
    for spec in gymnasium.registry.values():
        base = spec.id if spec.version is None else spec.id.rpartition("-v")[0]
        latest[base] = max(latest.get(base, 0), spec.version or 0)
    known = {base: f"{base}-v{number}" for base, number in latest.items()} | {name: name for name in BUILTINS}
    typed = env_id if version is None else env_id.rpartition("-v")[0]
    hint = suggestion(typed, known)
    for base, complete in known.items():
        hint = hint.replace(f"{base!r}", f"{complete!r}")
    builtin = ", ".join(BUILTINS)
    return (
        f"no environment is called {env_id!r}.{hint} Builtin are {builtin}; every gymnasium id works too, one "
        "that another package registers as PACKAGE:ID."
    )


def _gymnasium_parameters(spec: EnvSpec) -> list[str] | None:
    """The arguments that an environment takes, None if they cannot be told."""
    if spec.entry_point is None:
        return None
    try:
        creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
        parameters = inspect.signature(creator).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error):
        # A missing dependency is reported, with its remedy, when the environment is made.
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return list(dict.fromkeys([*(parameter.name for parameter in parameters), *_MAKE_ARGUMENTS]))


def _check_arguments(name: str, args: Mapping[str, Any], known: list[str] | None) -> None:
    for key in args:
        if known is not None and key not in known:
            takes = ", ".join(known) or "no arguments"
            raise UsageProblem(
                f"{name} has no argument {key!r}.{suggestion(key, known)} It takes {takes}.", "--env-arg"
            )
