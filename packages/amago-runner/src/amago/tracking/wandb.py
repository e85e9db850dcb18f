"""WandbTracker: metrics on Weights & Biases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amago.tracking.metric_logger import x_axis
from amago.utils import amago_warning

_MISSING = "logging to Weights & Biases needs wandb: pip install 'wandb>=0.17'"


class WandbTracker:
    """Logs metrics as `{section}/{name}` over the section's x axis, and axes by name.

    Reads wandb's environment variables; `WANDB_MODE=offline` requires neither a network nor an account. wandb also
    writes all metrics to a file in `log_dir`, and keeps retrying if the network fails during a run. If it cannot
    be reached at the start, the run is logged offline. `wandb sync FOLDER` uploads what the server does not have.

    Args:
        project: Project name. Defaults to the environment variable AMAGO_WANDB_PROJECT.
        entity: User or team name. Defaults to the environment variable AMAGO_WANDB_ENTITY.
        group: Run group.
        name: Run name.
        config: Configuration saved with the run.
        log_dir: Directory of wandb's files, created if missing.
        run_id: ID of the run to resume; None starts a new run.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        log_dir: str | Path | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(_MISSING) from error
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "project": project or os.environ.get("AMAGO_WANDB_PROJECT"),
            "entity": entity or os.environ.get("AMAGO_WANDB_ENTITY"),
            "group": group,
            "name": name,
            "config": dict(config or {}),
            "dir": None if log_dir is None else str(log_dir),
            "id": run_id,
            "resume": "allow" if run_id is not None else None,
        }
        try:
            self._run = wandb.init(**options)
        except wandb.errors.CommError as error:
            self._run = wandb.init(**options, mode="offline")
            reason = str(error).partition("\n")[0]
            amago_warning(
                f"Weights & Biases cannot be reached, so the run is logged offline: {reason}. To upload it later: "
                f"wandb sync {Path(self._run.dir).parent}"
            )
        self._sections: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run's ID; pass it as `run_id` to resume the run."""
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Logs metrics and axes as one wandb step."""
        if section not in self._sections:
            self._sections.add(section)
            self._run.define_metric(f"{section}/*", step_metric=x_axis(section))
        self._run.log({f"{section}/{name}": value for name, value in metrics.items()} | dict(axes))

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()


def require_wandb_login() -> None:
    """Checks that wandb has credentials, or needs none (`WANDB_MODE=offline`); they are not sent to the server.

    wandb is asked in a process of its own, since it starts threads, and environment workers are forked later.

    Raises:
        ImportError: wandb is not installed.
        RuntimeError: nobody is logged in.
    """
    if os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return
    check = "import wandb; wandb.login(verify=False, timeout=0)"
    result = subprocess.run(
        [sys.executable, "-c", check],
        stdin=subprocess.DEVNULL,  # without a terminal, wandb does not ask
        capture_output=True,
        text=True,
        env={**os.environ, "WANDB_SILENT": "true"},
        check=False,
    )
    if result.returncode == 0:
        return
    reason = result.stderr.strip().rpartition("\n")[2]
    if "No module named 'wandb'" in reason:
        raise ImportError(_MISSING)
    raise RuntimeError(
        f"Weights & Biases cannot be used: {reason.partition(': ')[2] or reason} Run `wandb login`, set "
        "WANDB_API_KEY, or set WANDB_MODE=offline to log to a folder that `wandb sync` uploads later."
    )
