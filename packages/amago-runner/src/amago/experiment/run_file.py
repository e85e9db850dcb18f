"""run.json: what evaluation, `resume` and collectors need to build a run again; and config.txt, for people.

Classes and functions are written as import paths. What has no path, a lambda for example, is listed under
"unwritable" with the reason, and whoever builds the run again has to supply it.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gin

from amago.experiment.checkpoint import write_json, write_text
from amago.experiment.config import DATASET_ARGUMENTS, ExperimentArguments
from amago.experiment.gin_config import (
    NotWritableError,
    active_bindings,
    bind,
    bindings_as_json,
    decode,
    encode,
    import_path,
    parameters_of,
)
from amago.loading import RLDataset

FORMAT_VERSION = 1
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
# Arguments about this process rather than the run.
_NOT_RECORDED = ("callbacks", "resume", "env_description", "seed")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The contents of a run.json.

    Attributes:
        seed: the seed that the run used, drawn if none was given.
        packages: versions by distribution.
        environment: what the run noted about its environment; None if only `make_train_env` knows.
        specs: shapes and kinds of observations and actions.
        arguments: arguments of the Experiment as JSON.
        gin: every binding as JSON, by key.
        unwritable: reasons by "gin.{key}" or "arguments.{name}".
    """

    run_name: str
    seed: int
    packages: dict[str, str]
    environment: dict[str, Any] | None
    specs: dict[str, Any]
    arguments: dict[str, Any]
    gin: dict[str, Any]
    unwritable: dict[str, str]

    def bind_gin(self) -> None:
        """Binds what gin held in the run.

        Raises:
            ValueError: a bound value could not be written and has to be bound by the caller.
        """
        missing = {key: why for key, why in self.unwritable.items() if key.startswith("gin.")}
        still = {key: why for key, why in missing.items() if key[len("gin.") :] not in _bound_keys()}
        if still:
            reasons = "; ".join(f"{key[len('gin.') :]}: {why}" for key, why in still.items())
            raise ValueError(f"bind with use_config what run.json could not hold: {reasons}")
        bind(self.gin)

    def experiment_arguments(self, **supplied: Any) -> dict[str, Any]:
        """Arguments to build the Experiment with; `supplied` ones win.

        Raises:
            ValueError: an argument without a default could not be written and is not supplied.
        """
        missing = [
            f"{key[len('arguments.') :]}: {why}"
            for key, why in self.unwritable.items()
            if key.startswith("arguments.") and key[len("arguments.") :] not in supplied
        ]
        if missing:
            raise ValueError(f"supply what run.json could not hold: {'; '.join(missing)}")
        recorded = _with_one_dataset(self.arguments, supplied)
        wanted = {name: value for name, value in recorded.items() if name not in supplied}
        return {**{name: _build(value) for name, value in wanted.items()}, "seed": self.seed, **supplied}


def _with_one_dataset(recorded: Mapping[str, Any], supplied: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded arguments with a dataset or the arguments that one is made from, and with the run's folder."""
    if recorded.get("dset_root") is None and recorded.get("dset_max_size") is None:
        return dict(recorded)
    if "dataset" not in supplied:
        return {**recorded, "dataset": None}
    kept = {name: value for name, value in recorded.items() if name not in DATASET_ARGUMENTS}
    if kept.get("ckpt_base_dir") is None:
        kept["ckpt_base_dir"] = str(Path(recorded["dset_root"]) / recorded["dset_name"])
    return kept


def _bound_keys() -> set[str]:
    return {binding.key for binding in active_bindings()}


def read_run(run_dir: Path) -> RunRecord:
    """Reads `run.json` in a run's folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another format.
    """
    path = run_dir / "run.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} holds no run.json, so it is no run's folder")
    content = json.loads(path.read_text())
    if content.pop("format", None) != FORMAT_VERSION:
        raise ValueError(f"{path} was written by another version of amago-runner and cannot be read")
    content.pop("created", None)
    return RunRecord(**content)


def write_run(arguments: ExperimentArguments, *, seed: int, specs: Mapping[str, Any]) -> None:
    """Writes `run.json` into the run's folder.

    Args:
        arguments: the Experiment.
        seed: the seed in use.
        specs: observation, rl2 and action specs as JSON.
    """
    written_gin, unwritable_gin = bindings_as_json()
    recorded, unwritable = _arguments_as_json(arguments)
    reasons = {f"arguments.{name}": why for name, why in unwritable.items()}
    reasons |= {f"gin.{key}": why for key, why in unwritable_gin.items()}
    content = {
        "format": FORMAT_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "run_name": arguments.run_name,
        "seed": seed,
        "packages": installed_versions(),
        "environment": None if arguments.env_description is None else dict(arguments.env_description),
        "specs": dict(specs),
        "arguments": recorded,
        "gin": written_gin,
        "unwritable": reasons,
    }
    write_json(content, arguments.run_dir / "run.json")


def write_config_text(arguments: ExperimentArguments) -> None:
    """Writes `config.txt` into the run's folder: what gin holds and the arguments, for people to read."""
    lines = ["# Settings bound with gin"]
    lines += [f"{binding.key} = {_readable(binding.value)}" for binding in active_bindings()] or ["# (none)"]
    lines += ["", "# Arguments of the Experiment"]
    lines += [f"{field.name} = {_readable(getattr(arguments, field.name))}" for field in fields(arguments)]
    # After the agent is built this lists every configurable in use with its defaults.
    lines += ["", "# All that gin-configurable parts were built with", gin.operative_config_str()]
    write_text("\n".join(lines) + "\n", arguments.run_dir / "config.txt")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run does."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _arguments_as_json(arguments: ExperimentArguments) -> tuple[dict[str, Any], dict[str, str]]:
    written: dict[str, Any] = {}
    unwritable: dict[str, str] = {}
    for field in fields(arguments):
        if field.name in _NOT_RECORDED:
            continue
        value = getattr(arguments, field.name)
        try:
            written[field.name] = _encode_argument(field.name, value)
        except NotWritableError as error:
            unwritable[field.name] = str(error)
    return written, unwritable


def _encode_argument(name: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    # A dataset, or an environment maker that is a dataclass, has no import path; its class and fields have.
    if (name == "dataset" and value is not None) or (is_dataclass(value) and not isinstance(value, type)):
        return _encode_object(value)
    return encode(value)


def _encode_object(value: Any) -> Any:
    """An object as its class and the constructor arguments that it kept as attributes."""
    keywords = {}
    for name in parameters_of(type(value)):
        if not hasattr(value, name):
            raise NotWritableError(f"{type(value).__name__} does not keep its argument {name!r}")
        attribute = getattr(value, name)
        keywords[name] = str(attribute) if isinstance(attribute, Path) else encode(attribute)
    return {"object": [import_path(type(value)), keywords]}


def _build(value: Any) -> Any:
    if isinstance(value, dict) and "object" in value:
        path, keywords = value["object"]
        cls = decode({"import": path})
        return cls(**{name: decode(argument) for name, argument in keywords.items()})
    return decode(value)


def _readable(value: Any) -> str:
    if isinstance(value, RLDataset):
        value = {name: getattr(value, name, None) for name in parameters_of(type(value))} | {
            "class": type(value)
        }
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_readable(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        return opening + ", ".join(map(_readable, value)) + closing
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return repr(value)
