"""Hands the command line's gin settings to gin; what gin does not know becomes a `UsageProblem`.

The order is: what the recipe and the options chose, then `--gin` files from left to right, then `--set`;
later wins. `--set` takes what stands in a gin file: `Agent.gamma=0.99`, `FFTstepEncoder.activation="relu"`,
`CNNTstepEncoder.cnn_type=@IMPALAishCNN`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from amago.cli.options import UsageProblem, split_assignment
from amago.cli_utils import use_config
from amago.experiment.gin_bindings import explain, unlocked
from amago.experiment.run_file import RunRecord


def apply_bindings(
    chosen: Mapping[str, Any], gin_files: Sequence[Path] = (), assignments: Sequence[str] = ()
) -> None:
    """Binds and locks everything that gin decides in this run; what was bound before is cleared first.

    Args:
        chosen: selector.parameter to value, the settings that the recipe and the options stand for.
        gin_files: files in gin's syntax, in the order in which they apply.
        assignments: texts of the form SELECTOR.PARAMETER=LITERAL.

    Raises:
        UsageProblem: a file or a text that gin refuses; the message names the nearest selector or parameter.
    """
    with gin.unlock_config():
        gin.clear_config()
        use_config(chosen, finalize=False)
    override_bindings(gin_files, assignments)


def restore_bindings(record: RunRecord) -> None:
    """Binds what gin held in a run, and nothing else; leaves gin unlocked for further settings."""
    with gin.unlock_config():
        gin.clear_config()
        record.bind_gin()


def override_bindings(gin_files: Sequence[Path], assignments: Sequence[str]) -> None:
    """Binds the files and then the assignments on top of what gin holds, and locks it; raises as above."""
    for path in gin_files:
        try:
            use_config({}, gin_configs=[path], finalize=False)
        except (ValueError, SyntaxError, ImportError, OSError) as error:
            raise UsageProblem(str(error), "--gin") from error
    for text in assignments:
        _assign(text)
    use_config({}, finalize=True)


def _assign(text: str) -> None:
    key, value = split_assignment(text, "--set")
    if "." not in key:
        remedy = "write SELECTOR.PARAMETER=VALUE, as in Agent.gamma=0.99."
        raise UsageProblem(f"{text!r} names no parameter: {remedy}", "--set")
    try:
        with unlocked():
            gin.parse_config(f"{key} = {value}")
    except SyntaxError as error:
        raise UsageProblem(
            f"{value!r} is no gin literal: give a number, True, None, a list, @Configurable or a text in quotes. "
            f"The shell takes one pair of quotes away, so write --set '{key}=\"relu\"'.",
            "--set",
        ) from error
    except ValueError as error:
        # gin adds the line that it parsed, which is the option's own text.
        raise UsageProblem(explain(str(error).partition("\n")[0]), "--set") from error
