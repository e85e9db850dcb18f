"""gin settings of training scripts: bound in one call, and filled in by choosing classes by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gin

from amago.agent import BaseAgent, get_agent_cls
from amago.envs.exploration import ExplorationWrapper, get_exploration_cls
from amago.experiment.gin_config import (
    add_working_folder_to_path,
    explain,
    import_configurables,
    parameters_of,
    selector_of,
    unlocked,
)
from amago.nets.registry import did_you_mean
from amago.nets.traj_encoders import TrajEncoder, get_traj_encoder_cls
from amago.nets.tstep_encoders import TstepEncoder, get_tstep_encoder_cls

T = TypeVar("T")

# Arguments that `memory_size` sets in the builtin trajectory encoders: {argument: multiple of memory_size}.
_SIZES: dict[str, dict[str, int]] = {
    "identity": {},
    "ff": {"d_model": 1},
    "rnn": {"d_hidden": 1, "d_output": 1},
    "transformer": {"d_model": 1, "d_ff": 4},
    "mamba": {"d_model": 1},
}


def use_config(
    custom_params: Mapping[str, Any],
    gin_configs: Sequence[str | os.PathLike[str]] | None = None,
    finalize: bool = True,
) -> None:
    """Binds gin settings: first those of the dictionary, then those of the files from left to right; later wins.

    Settings of earlier calls stay unless they are bound again, also if gin was locked. A file may import
    modules of the working folder (`import my_envs`).

    Args:
        custom_params: "Selector.parameter" to value. A selector may be complete
            ("amago.nets.cnn.IMPALAishCNN.cnn_block_depths") or cut at any dot ("IMPALAishCNN.cnn_block_depths").
        gin_configs: paths of gin files.
        finalize: lock gin afterwards.

    Raises:
        ValueError: an unknown selector or parameter; suggests the most similar one.
        FileNotFoundError: a path of `gin_configs` does not exist.
        TypeError: an argument of the wrong type.
    """
    if not isinstance(custom_params, Mapping):
        raise TypeError(f"custom_params must be a dictionary of gin settings, not {custom_params!r}")
    if isinstance(gin_configs, (str, os.PathLike)):
        raise TypeError(f"gin_configs must be a list of paths: write [{str(gin_configs)!r}]")
    import_configurables()
    with unlocked():
        for key, value in custom_params.items():
            _bind(key, value)
        for path in gin_configs or ():
            _parse_file(Path(path))
    if finalize and not gin.config_is_locked():
        gin.finalize()


def _bind(key: str, value: Any) -> None:
    if "." not in key:
        raise ValueError(f"{key!r} names no parameter: write 'Selector.parameter', as in 'Agent.gamma'")
    try:
        gin.bind_parameter(key, value)
    except KeyError as error:
        raise ValueError(f"cannot bind {key!r}: {error.args[0]}") from error
    except ValueError as error:
        raise ValueError(f"cannot bind {key!r} = {value!r}: {explain(str(error))}") from error


def _parse_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"gin_configs: there is no file {str(path)!r} (working folder: {Path.cwd()})")
    add_working_folder_to_path()
    try:
        gin.parse_config_file(str(path))
    except ValueError as error:
        raise ValueError(explain(str(error))) from error


def switch_tstep_encoder(config: dict[str, Any], arch: str, **kwargs: Any) -> type[TstepEncoder]:
    """The timestep encoder registered as `arch`; adds settings of its arguments `kwargs` to `config`.

    Raises:
        ValueError: an unknown name or argument; suggests the most similar one.
    """
    return _configure(config, get_tstep_encoder_cls(arch), kwargs)


def switch_agent(config: dict[str, Any], agent: str, **kwargs: Any) -> type[BaseAgent]:
    """The agent registered as `agent`; adds settings of its arguments `kwargs` to `config`.

    Raises:
        ValueError: an unknown name or argument; suggests the most similar one.
    """
    return _configure(config, get_agent_cls(agent), kwargs)


def switch_exploration(config: dict[str, Any], strategy: str, **kwargs: Any) -> type[ExplorationWrapper]:
    """The exploration wrapper registered as `strategy`; adds settings of its arguments `kwargs` to `config`.

    Raises:
        ValueError: an unknown name or argument; suggests the most similar one.
    """
    return _configure(config, get_exploration_cls(strategy), kwargs)


def switch_traj_encoder(
    config: dict[str, Any],
    arch: str,
    memory_size: int | None = None,
    layers: int | None = None,
    **kwargs: Any,
) -> type[TrajEncoder]:
    """The trajectory encoder registered as `arch`; adds settings of its size and arguments to `config`.

    Args:
        config: gin settings for `use_config`.
        arch: "identity", "ff", "rnn" (also "gru"), "transformer", "mamba" or a name that you registered.
        memory_size: width of the model; the feed-forward blocks of a Transformer are four times as wide. Your own
            encoders receive it if their constructor has an argument `memory_size`.
        layers: number of layers; your own encoders receive it as `n_layers`.
        kwargs: further arguments; they override the two sizes.

    Raises:
        ValueError: an unknown name or argument; suggests the most similar one.
    """
    cls = get_traj_encoder_cls(arch)
    sizes: dict[str, Any] = {}
    # By class, since an encoder may have several names.
    builtin = next((name for name in _SIZES if get_traj_encoder_cls(name) is cls), None)
    if builtin is not None:
        if memory_size is not None:
            sizes.update({name: multiple * memory_size for name, multiple in _SIZES[builtin].items()})
        if layers is not None and builtin != "identity":
            sizes["n_layers"] = layers
    else:
        given = {"memory_size": memory_size, "n_layers": layers}
        accepted = parameters_of(cls)
        sizes = {name: value for name, value in given.items() if value is not None and name in accepted}
    return _configure(config, cls, {**sizes, **kwargs})


def _configure(config: dict[str, Any], cls: type[T], kwargs: dict[str, Any]) -> type[T]:
    """Adds `kwargs` to `config` under the class's gin selector; returns the class."""
    if not kwargs:
        return cls
    selector = selector_of(cls)
    if selector is None:
        raise ValueError(
            f"{cls.__name__} takes no settings ({', '.join(kwargs)}): it is not gin-configurable. "
            "Decorate the class with @gin.configurable."
        )
    known = parameters_of(cls)
    for name, value in kwargs.items():
        if name not in known:
            hint = did_you_mean(name, known) or f" Its arguments are {', '.join(known)}."
            raise ValueError(f"{cls.__name__} has no argument {name!r}.{hint}")
        config[f"{selector}.{name}"] = value
    return cls
