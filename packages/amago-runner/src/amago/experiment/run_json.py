"""run.json, from which evaluation, `resume` and collectors rebuild a run; and config.txt, for people.

Classes and functions are saved as import paths. Values that cannot be saved, such as lambdas, are listed under
"unwritable" with the reason, and must be passed again when the run is rebuilt.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gin
import numpy as np
import torch
from gymnasium.spaces import Box

from amago.agent import BaseAgent
from amago.envs.actions import make_action_codec
from amago.envs.observations import ObservationMapper
from amago.envs.space_json import space_from_json
from amago.experiment.checkpointer import write_json, write_text
from amago.experiment.config import DATASET_ARGUMENTS, ExperimentConfig
from amago.experiment.evaluator import HasSpaces
from amago.experiment.gin_config import (
    NotWritableError,
    active_bindings,
    bind,
    bindings_as_json,
    bound_alone,
    decode,
    encode,
    import_path,
    parameters_of,
)
from amago.experiment.trusted import require_trusted_module
from amago.nets.specs import ObsSpec, as_spec
from amago.utils import as_readable_json, gin_as_wandb_config

RUN_FILE = "run.json"
FORMAT_VERSION = 2
_PACKAGES = (
    "amago-kernels",
    "amago-nets",
    "amago-envs",
    "amago-agents",
    "amago-runner",
    "torch",
    "numpy",
    "gymnasium",
)
AGENT_ARGUMENTS = ("agent_type", "tstep_encoder_type", "traj_encoder_type", "max_seq_len")
# Arguments of the process, not of the run.
_NOT_RECORDED = ("callbacks", "resume", "overwrite", "env_description", "seed", "fsdp")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The contents of a run.json.

    Attributes:
        run_name: Name of the run.
        run_id: Identity of the run, 12 hexadecimal digits that its checkpoints carry too.
        created: Time at which the run was first started, in Unix seconds.
        experiment: Import path of the class of the Experiment.
        seed: Seed of the run, also if it was drawn.
        packages: Versions by distribution name.
        environment: The run's `env_description`.
        specs: Shapes and kinds of observations, actions and rl2s, as the agent sees them.
        spaces: Spaces of observations and actions of the environment, see `amago.envs.space_json`; None in files
            of older versions.
        arguments: Arguments of the Experiment as JSON.
        gin: gin bindings as JSON.
        env_names: Names of the validation environments; empty in files of older versions.
        unwritable: Values that could not be saved: reasons by "gin.{key}", "arguments.{name}" or "experiment".
    """

    run_name: str
    seed: int
    packages: dict[str, str]
    environment: dict[str, Any] | None
    specs: dict[str, Any]
    arguments: dict[str, Any]
    gin: dict[str, Any]
    unwritable: dict[str, str]
    run_id: str
    created: float
    experiment: str | None
    spaces: dict[str, Any] | None = None
    env_names: list[str] = field(default_factory=list)

    def bind_gin(self) -> None:
        """Restores the gin bindings of the run.

        Raises:
            ValueError: a value could not be saved, and is not bound by the caller.
        """
        bound = {binding.key for binding in active_bindings()}
        missing = {key: why for key, why in self._unwritable("gin.").items() if key not in bound}
        if missing:
            raise ValueError(f"run.json lacks gin bindings, bind them with use_config: {_listed(missing)}")
        bind(self.gin)

    def import_classes(self) -> None:
        """Imports the run's classes, which registers them with gin, so that their settings can be bound.

        Raises:
            UntrustedNameError: one is neither a part of amago nor of a trusted package.
        """
        for name in (*AGENT_ARGUMENTS, "exploration_wrapper_type"):
            _decode_argument(self.arguments.get(name))

    def experiment_class(self) -> type[Any]:
        """The class of the run's Experiment.

        Raises:
            ValueError: it could not be saved, since it cannot be imported.
        """
        if self.experiment is None:
            raise ValueError(f"the class of the Experiment is unknown: {self.unwritable['experiment']}")
        cls: type[Any] = decode({"import": self.experiment})
        return cls

    def argument(self, name: str) -> Any:
        """One recorded argument of the Experiment; raises ValueError if it could not be saved."""
        if (why := self.unwritable.get(f"arguments.{name}")) is not None:
            raise ValueError(f"run.json lacks {name}: {why}")
        return _decode_argument(self.arguments[name])

    def build_agent(self) -> BaseAgent:
        """The run's agent with new weights, built without its environments; leaves gin's bindings as they are.

        Raises:
            ValueError: the file lacks something that the agent is built from, and the caller has not bound it.
        """
        if self.spaces is None:
            raise ValueError("run.json was written by an older version and lacks the environment's spaces")
        unwritten = self._unwritable("gin.")
        bound = {binding.key for binding in active_bindings()}
        missing = {
            name: why for name, why in self._unwritable("arguments.").items() if name in AGENT_ARGUMENTS
        }
        missing |= {key: why for key, why in unwritten.items() if key not in bound}
        if missing:
            raise ValueError(f"run.json lacks what the agent is built from: {_listed(missing)}")
        observation, action = (space_from_json(self.spaces[name]) for name in ("observation", "action"))
        codec = make_action_codec(action, batched_envs=1)
        # Before the bindings: importing a class registers it with gin.
        arguments = {name: _decode_argument(self.arguments[name]) for name in AGENT_ARGUMENTS}
        with bound_alone(self.gin, kept=list(unwritten)), torch.random.fork_rng(devices=[]):
            agent: BaseAgent = arguments.pop("agent_type")(
                obs_space=ObservationMapper(observation, batched_envs=1).space,
                rl2_space=Box(-math.inf, math.inf, (1 + codec.width,), np.float32),
                action_space=codec.policy_space,
                **arguments,
            )
        return agent

    def experiment_arguments(self, **supplied: Any) -> dict[str, Any]:
        """Arguments to create the Experiment again; `supplied` ones replace those of the run.

        Raises:
            ValueError: an argument could not be saved, and is not supplied.
        """
        missing = {name: why for name, why in self._unwritable("arguments.").items() if name not in supplied}
        if missing:
            raise ValueError(f"run.json lacks arguments, pass them: {_listed(missing)}")
        recorded = _with_one_dataset(self.arguments, supplied)
        decoded = {name: _decode_argument(value) for name, value in recorded.items() if name not in supplied}
        return {**decoded, "seed": self.seed, **supplied}

    def _unwritable(self, prefix: str) -> dict[str, str]:
        found = self.unwritable.items()
        return {key.removeprefix(prefix): why for key, why in found if key.startswith(prefix)}


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())


def _with_one_dataset(recorded: Mapping[str, Any], supplied: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded arguments with either `dataset` or the arguments that create one, and with the run's folder."""
    if recorded.get("dset_root") is None and recorded.get("dset_max_size") is None:
        return dict(recorded)
    if "dataset" not in supplied:
        return {**recorded, "dataset": None}
    kept = {name: value for name, value in recorded.items() if name not in DATASET_ARGUMENTS}
    if kept.get("ckpt_base_dir") is None:
        kept["ckpt_base_dir"] = str(Path(recorded["dset_root"]) / recorded["dset_name"])
    return kept


def read_run(run_dir: Path) -> RunRecord:
    """Reads `run.json` in a run's folder.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged or has another format.
    """
    path = run_dir / RUN_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} is not the folder of a run: it contains no {RUN_FILE}")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT_VERSION:
        raise ValueError(f"{path} was written by another version of amago-runner and cannot be read")
    if "keep_checkpoints" in content["arguments"]:  # its name before keep_every and keep_best
        content["arguments"]["keep_last"] = content["arguments"].pop("keep_checkpoints")
    try:
        return RunRecord(**content)
    except TypeError as error:
        raise ValueError(
            f"{path} was written by another version of amago-runner and cannot be read: {error}"
        ) from error


def write_run(
    config: ExperimentConfig,
    *,
    run_id: str,
    created: float,
    seed: int,
    env: HasSpaces,
    spaces: dict[str, Any] | None = None,
    env_names: Iterable[str] = (),
) -> None:
    """Writes `run.json` into the run's folder.

    Args:
        config: The experiment.
        run_id: Identity of the run.
        created: Time at which the run was first started, in Unix seconds.
        seed: Its seed.
        env: An environment of the run, for the agent's spaces.
        spaces: The environment's own spaces, `AMAGOEnv.spaces_as_json`.
        env_names: Names of the validation environments.
    """
    gin_json, gin_unwritable = bindings_as_json()
    arguments, arguments_unwritable = _arguments_as_json(config)
    experiment, class_unwritable = None, {}
    try:
        experiment = import_path(type(config))
    except NotWritableError as error:
        class_unwritable["experiment"] = str(error)
    agent_spaces = {"observation": env.observation_space, "rl2": env.rl2_space, "action": env.action_space}
    content = {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "created": created,
        "run_name": config.run_name,
        "seed": seed,
        "packages": installed_versions(),
        "environment": None if config.env_description is None else dict(config.env_description),
        "env_names": sorted(set(env_names)),
        "specs": {name: _spec_as_json(space) for name, space in agent_spaces.items()},
        "spaces": spaces,
        "experiment": experiment,
        "arguments": arguments,
        "gin": gin_json,
        "unwritable": {
            **class_unwritable,
            **{f"arguments.{name}": why for name, why in arguments_unwritable.items()},
            **{f"gin.{key}": why for key, why in gin_unwritable.items()},
        },
    }
    write_json(content, config.run_dir / RUN_FILE)


def readable_config(config: ExperimentConfig, seed: int) -> dict[str, Any]:
    """The settings of a run for people.

    gin settings as "Selector.parameter", arguments as "Experiment.argument", and versions of packages.
    """
    arguments = {
        f"Experiment.{each.name}": as_readable_json(getattr(config, each.name))
        for each in fields(config)
        if each.name not in ("callbacks", "resume")
    }
    return {
        **gin_as_wandb_config(),
        **arguments,
        "Experiment.seed": seed,
        "packages": installed_versions(),
    }


def _spec_as_json(space: Any) -> dict[str, Any]:
    spec = as_spec(space)
    if isinstance(spec, ObsSpec):
        return {key: {"shape": list(array.shape), "dtype": array.dtype} for key, array in spec.arrays.items()}
    bounds = {name: getattr(spec, name) for name in ("low", "high")}
    finite = {name: x if x is not None and math.isfinite(x) else None for name, x in bounds.items()}
    return {"kind": spec.kind, "sizes": list(spec.sizes), **finite}


def write_config_text(config: ExperimentConfig) -> None:
    """Writes `config.txt` into the run's folder: gin bindings, arguments, and defaults of all configurables."""
    bindings, arguments = bindings_as_json(), _arguments_as_json(config)
    lines = [
        "# gin bindings",
        *_as_lines(*bindings),
        "",
        "# Arguments of the Experiment",
        *_as_lines(*arguments),
    ]
    # Complete only after the agent was created.
    lines += ["", "# All gin-configurable settings in use", gin.operative_config_str()]
    write_text("\n".join(lines) + "\n", config.run_dir / "config.txt")


def _as_lines(written: Mapping[str, Any], unwritable: Mapping[str, str]) -> list[str]:
    lines = [f"{name} = {json.dumps(value)}" for name, value in written.items()]
    return lines + [f"# {name} is not shown: {why}" for name, why in unwritable.items()]


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run depends on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _arguments_as_json(config: ExperimentConfig) -> tuple[dict[str, Any], dict[str, str]]:
    written: dict[str, Any] = {}
    unwritable: dict[str, str] = {}
    for each in fields(config):
        if each.name in _NOT_RECORDED:
            continue
        value = getattr(config, each.name)
        try:
            written[each.name] = _encode_argument(each.name, value)
        except NotWritableError as error:
            unwritable[each.name] = str(error)
    return written, unwritable


def _encode_argument(name: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    # Datasets, and environment makers that are dataclasses, are saved as class and constructor arguments.
    if (name == "dataset" and value is not None) or (is_dataclass(value) and not isinstance(value, type)):
        return _encode_object(value)
    return encode(value)


def _encode_object(value: Any) -> Any:
    """An object as its class and its constructor arguments, read from the attributes of the same names."""
    keywords = {}
    for name in parameters_of(type(value)):
        if not hasattr(value, name):
            raise NotWritableError(f"{type(value).__name__} has no attribute for its argument {name!r}")
        attribute = getattr(value, name)
        keywords[name] = str(attribute) if isinstance(attribute, Path) else encode(attribute)
    return {"object": [import_path(type(value)), keywords]}


def _decode_argument(value: Any) -> Any:
    if isinstance(value, dict) and "object" in value:
        path, keywords = value["object"]
        cls = decode({"import": path})
        made = cls(**{name: decode(argument) for name, argument in keywords.items()})
        if (module := getattr(made, "module_to_import", None)) is not None:
            require_trusted_module(module, made.name)
        return made
    return decode(value)
