"""gin settings of a script in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from amago.experiment.gin_bindings import explain, import_configurables, unlocked


def use_config(
    custom_params: Mapping[str, Any],
    gin_configs: Sequence[str | os.PathLike[str]] | None = None,
    finalize: bool = True,
) -> None:
    """Changes default values: first the dictionary's, then those of the files from left to right; later wins.

    Values bound by earlier calls stay unless they are bound again; a locked configuration is opened for the call.

    Args:
        custom_params: "Selector.parameter" to value. A selector may be full
            ("amago.nets.cnn.IMPALAishCNN.cnn_block_depths") or cut at any dot ("IMPALAishCNN.cnn_block_depths").
        gin_configs: paths of files in gin's syntax.
        finalize: lock the configuration afterwards, so that nothing changes it by accident.

    Raises:
        ValueError: an unknown selector or parameter; the message names the nearest that exists.
        FileNotFoundError: a path of `gin_configs` does not exist.
        TypeError: an argument of the wrong kind.
    """
    if not isinstance(custom_params, Mapping):
        raise TypeError(f"custom_params must be a dictionary of gin bindings, not {custom_params!r}")
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
        raise FileNotFoundError(
            f"gin_configs names {str(path)!r}, which is no file (looked from {Path.cwd()})"
        )
    try:
        gin.parse_config_file(str(path))
    except ValueError as error:
        raise ValueError(explain(str(error))) from error
