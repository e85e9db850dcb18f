"""WandbTracker: metrics on Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WandbTracker:
    """Logs metrics as `{section}/{name}` and axes by name.

    Reads wandb's environment variables; `WANDB_MODE=offline` requires neither a network nor an account.

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
            raise ImportError("logging to Weights & Biases needs wandb: pip install 'wandb>=0.17'") from error
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project or os.environ.get("AMAGO_WANDB_PROJECT"),
            entity=entity or os.environ.get("AMAGO_WANDB_ENTITY"),
            group=group,
            name=name,
            config=dict(config or {}),
            dir=None if log_dir is None else str(log_dir),
            id=run_id,
            resume="allow" if run_id is not None else None,
        )

    @property
    def run_id(self) -> str:
        """The run's ID; pass it as `run_id` to resume the run."""
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], *, section: str, axes: Mapping[str, float]) -> None:
        """Logs metrics and axes as one wandb step."""
        self._run.log({f"{section}/{name}": value for name, value in metrics.items()} | dict(axes))

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()
