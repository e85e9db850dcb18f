"""Environments of the command line, found by name in the catalog, Gymnasium's registry or a user's module."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from amago.cli.options import UsageProblem
from amago.cli.recipe import Recipe
from amago.envs import AMAGOEnv
from amago.envs.builtin.catalog import CATALOG, CatalogEntry, Kind, find_entry
from amago.envs.registry import did_you_mean
from amago.nets.specs import as_action_spec, as_obs_spec
from amago.nets.tstep_encoders import tstep_encoder_for

_STEPS_WITHOUT_LIMIT = 1000
_SMALLEST_SCREEN = 32  # pixels of the shorter side; smaller images are grids of ids
# What constructors of environments raise for wrong arguments, missing packages, or data that cannot be found.
_MAKE_ERRORS = (
    *(TypeError, ValueError, AssertionError, AttributeError, KeyError),
    *(ImportError, RuntimeError, OSError),
)


@dataclass(frozen=True, kw_only=True)
class EnvMaker:
    """Makes an environment when called; the `make_train_env` of an Experiment.

    A dataclass and no closure, so worker processes can receive it and run.json can hold it.

    Attributes:
        name: a name or an id of the catalog, a complete Gymnasium id, or "module:Class".
        args: keyword arguments of the environment, the catalog's defaults included.
        num_envs: environments that step together in one object; 1 for an ordinary environment.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1

    @property
    def module_to_import(self) -> str | None:
        """The module that registers or defines the environment; None if its name has none."""
        return self.name.rpartition(":")[0] or None

    def make(self) -> gymnasium.Env[Any, Any]:
        """A new environment; not wrapped for the agent, unless the catalog's class is an AMAGOEnv already."""
        entry = find_entry(self.name)
        if entry is not None:
            factory, wrapper = entry.load()
            rows = {entry.rows_argument: self.num_envs} if entry.rows_argument else {}
            env = factory(**self.args, **rows)
            return cast("gymnasium.Env[Any, Any]", env if wrapper is None else wrapper(env))
        if (cls := _class_in_module(self.name)) is not None:
            return cls(**self.args)
        if self.num_envs > 1:
            batched: Any = gymnasium.make_vec(
                self.name, self.num_envs, vectorization_mode="vector_entry_point", **self.args
            )
            return cast("gymnasium.Env[Any, Any]", batched)
        return gymnasium.make(self.name, **self.args)

    @property
    def takes_render_mode(self) -> bool:
        """Whether the environment has the argument `render_mode`, as every Gymnasium id does."""
        entry = find_entry(self.name)
        factory = _class_in_module(self.name) if entry is None else entry.load()[0]
        if factory is None:
            return True
        parameters = inspect.signature(factory).parameters.values()
        return any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)

    def __call__(self) -> AMAGOEnv:
        env = self.make()
        if isinstance(env, AMAGOEnv):
            return env
        names_its_task = find_entry(self.name) is not None and hasattr(env, "env_name")
        name = None if names_its_task else self.name.rpartition(":")[2]
        return AMAGOEnv(env, env_name=name, batched_envs=self.num_envs)


def maker_of(recipe: Recipe) -> EnvMaker:
    """The maker of a complete recipe's environments."""
    num_envs = recipe.actors if recipe.env_mode == "already_vectorized" else 1
    return EnvMaker(name=recipe.env, args=recipe.env_args, num_envs=num_envs)


def resolve_environment(name: str, args: Mapping[str, Any]) -> EnvMaker:
    """The maker of the environment with this name and these arguments.

    Args:
        name: a name of the catalog; an id of one of its packages, such as "BabyAI-GoToLocal-v0"; a Gymnasium id:
            "CartPole-v1", "CartPole" for the newest version, or "module:Id-v0" for an id that a module registers
            when it is imported; or "module:Class".

    Raises:
        UsageProblem: an unknown environment; suggests the most similar one.
    """
    entry = find_entry(name)
    if entry is not None:
        return EnvMaker(name=name, args={**_arguments_of_entry(entry, name), **args})
    module, colon, env_id = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        if _class_in_module(name) is not None:
            return EnvMaker(name=name, args=dict(args))
        namespace, base, version = parse_env_id(env_id)
        latest = find_highest_version(namespace, base)
        if version is None and latest is not None:
            env_id = f"{env_id}-v{latest}"
        return EnvMaker(name=f"{module}{colon}{gymnasium.spec(env_id).id}", args=dict(args))
    except ImportError as error:
        raise UsageProblem(f"the module of {name!r} cannot be imported: {error}", "ENV") from error
    except gymnasium.error.Error as error:
        if module:
            ids = _registered_by(module)
            shown = f" It registers {', '.join(ids[:10])}{' …' if len(ids) > 10 else ''}." if ids else ""
            raise UsageProblem(
                f"the module {module!r} registers no environment {env_id!r}, and has no gymnasium.Env class of "
                f"that name.{shown}{did_you_mean(env_id, ids)}",
                "ENV",
            ) from error
        raise _unknown_environment(env_id) from error


def _arguments_of_entry(entry: CatalogEntry, name: str) -> dict[str, Any]:
    """The catalog's arguments for a name or an id; UsageProblem if packages are missing or have no such id."""
    try:
        entry.import_packages()
        if name != entry.name:
            known = [each for each in gymnasium.registry if each.startswith(entry.id_prefix)]
            if known and name not in known:
                raise _unknown_environment(name)
        return entry.arguments(name)
    except (ImportError, ValueError) as error:
        raise UsageProblem(f"{name}: {error}", "ENV") from error


def _unknown_environment(name: str) -> UsageProblem:
    examples = [entry.example_id for entry in CATALOG.values() if entry.example_id]
    hint = did_you_mean(name, [*CATALOG, *gymnasium.registry, *examples])
    return UsageProblem(
        f"there is no environment {name!r}.{hint} `amago-run list environments` shows the builtin ones; any "
        "Gymnasium id works too, as MODULE:ID if another module registers it.",
        "ENV",
    )


def _class_in_module(name: str) -> Callable[..., gymnasium.Env[Any, Any]] | None:
    """The environment class that "module:Class" names; None for an id."""
    module, _, attribute = name.rpartition(":")
    found = getattr(importlib.import_module(module), attribute, None) if module else None
    return found if isinstance(found, type) and issubclass(found, gymnasium.Env) else None


def _registered_by(module: str) -> list[str]:
    """The Gymnasium ids whose environments are defined in a module, or below it."""
    ids = []
    for env_id, spec in gymnasium.registry.items():
        entry = spec.entry_point
        home = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        if home == module or home.startswith(f"{module}."):
            ids.append(env_id)
    return sorted(ids)


def choose_env_mode(name: str, wanted: str | None) -> str:
    """The way to step environments of this name: the wanted one, or the one that they need.

    Raises:
        UsageProblem: they have no such mode.
    """
    entry = find_entry(name)
    if entry is not None and entry.rows_argument:
        if wanted not in (None, "already_vectorized"):
            raise UsageProblem(
                f"{name} steps its environments together: use already_vectorized.", "--env-mode"
            )
        return "already_vectorized"
    if entry is not None and entry.one_per_process:
        if wanted not in (None, "async"):
            raise UsageProblem(f"{name} needs a process for each environment: use async.", "--env-mode")
        return "async"
    if wanted == "already_vectorized" and (entry is not None or not _has_vector_version(name)):
        together = ", ".join(each.name for each in CATALOG.values() if each.rows_argument)
        raise UsageProblem(
            f"{name} has no version that steps many environments at once: use sync or async. Environments that "
            f"have one are {together}, and Gymnasium ids with a vector_entry_point, such as CartPole-v1.",
            "--env-mode",
        )
    return wanted or "sync"


def _has_vector_version(name: str) -> bool:
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    return spec is not None and spec.vector_entry_point is not None


@dataclass(frozen=True, kw_only=True)
class EnvFacts:
    """Properties of an environment that default settings depend on.

    Attributes:
        kind: the kind of environment, which selects the recipe.
        time_limit: maximum length of an episode in steps; None if there is no limit.
        context: default context length in timesteps; None decides by the recipe and the time limit.
        reward_multiplier: scale of rewards for training; None for that of the recipe.
        action_kind: "discrete", "multidiscrete", "multibinary" or "box".
        tstep_encoder: the name of the timestep encoder for the observation space.
        grids: keys of observations that are small grids of ids.
    """

    kind: Kind
    time_limit: int | None
    context: int | None
    reward_multiplier: float | None
    action_kind: str
    tstep_encoder: str
    grids: tuple[str, ...]

    @property
    def evaluation_steps(self) -> int:
        """Steps in which every actor finishes at least one episode; a guess if there is no time limit."""
        return (self.time_limit or _STEPS_WITHOUT_LIMIT) + 1

    def max_seq_len(self, longest: int) -> int:
        """Default context length: that of the catalog, else the time limit, at most `longest`."""
        return self.context or min(self.time_limit or longest, longest)


def inspect_environment(maker: EnvMaker) -> EnvFacts:
    """Makes the environment once and reads its properties.

    Raises:
        UsageProblem: the environment cannot be made with these arguments, or has unsupported spaces.
    """
    try:
        env = maker.make()
    except (*_MAKE_ERRORS, gymnasium.error.Error) as error:
        raise UsageProblem(f"{maker.name} cannot be made: {error}", "ENV") from error
    entry = find_entry(maker.name)
    try:
        wrapped = env if isinstance(env, AMAGOEnv) else AMAGOEnv(env, maker.name, maker.num_envs)
        space = wrapped.mapped_observation_space
        seen = _kind_of(env.observation_space, space)
        return EnvFacts(
            kind=_choose_kind(entry, maker.name, seen),
            time_limit=_time_limit(entry, env),
            context=None if entry is None else entry.context,
            reward_multiplier=None if entry is None else entry.reward_multiplier,
            action_kind=as_action_spec(wrapped.action_space).kind,
            tstep_encoder=tstep_encoder_for(space),
            grids=tuple(key for key, side in _shorter_sides(space).items() if side < _SMALLEST_SCREEN),
        )
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{maker.name} is not supported: {error}", "ENV") from error
    finally:
        env.close()


def _choose_kind(entry: CatalogEntry | None, name: str, seen: Kind) -> Kind:
    """The catalog's kind; what is seen, if there is none, or a family of "vectors" shows images."""
    if entry is None:
        return seen
    if name in entry.memory_ids:
        return "memory"
    return seen if entry.kind == "vectors" else entry.kind


def _kind_of(space: Any, mapped: Any) -> Kind:
    """Pixels for images of some size, tokens for small grids and texts, else vectors."""
    sides = _shorter_sides(mapped).values()
    if any(side >= _SMALLEST_SCREEN for side in sides):
        return "pixels"
    return "tokens" if sides or _holds_text(space) else "vectors"


def _shorter_sides(mapped: Any) -> dict[str, int]:
    """The shorter side of each image, (H, W, C) or (C, H, W), by key."""
    arrays = as_obs_spec(mapped).items()
    return {key: sorted(array.shape)[-2] for key, array in arrays if len(array.shape) == 3}


def _holds_text(space: Any) -> bool:
    inner = getattr(space, "spaces", None)
    if inner is not None:
        return any(_holds_text(each) for each in (inner.values() if isinstance(inner, Mapping) else inner))
    return getattr(space.dtype, "kind", None) == "U"  # gymnasium's Text, minigrid's MissionSpace


def _time_limit(entry: CatalogEntry | None, env: gymnasium.Env[Any, Any]) -> int | None:
    if entry is None:
        return None if env.spec is None else env.spec.max_episode_steps
    return entry.episode_steps if entry.steps_of is None else entry.steps_of(env)


def named_module(changes: Mapping[str, Any]) -> list[str]:
    """The module of MODULE:ID where the user names the environment so: whoever names it trusts it."""
    module = str(changes.get("env", "")).rpartition(":")[0]
    return [module] if module else []
