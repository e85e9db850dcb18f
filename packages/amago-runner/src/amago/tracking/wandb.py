"""Metrics to Weights & Biases; the library is imported when a tracker is made and not before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amago.tracking.base import Number, as_floats

PROJECT_VARIABLE = "AMAGO_WANDB_PROJECT"
ENTITY_VARIABLE = "AMAGO_WANDB_ENTITY"


class WandbTracker:
    """Logs to a run on Weights & Biases, metrics as `{section}/{name}` and axes under their own names.

    Follows wandb's own environment variables; with `WANDB_MODE=offline` neither network nor account is needed.

    Args:
        project: project's name; else the variable AMAGO_WANDB_PROJECT.
        entity: user or team; else the variable AMAGO_WANDB_ENTITY.
        group: group that the run belongs to.
        name: the run's name.
        config: settings to keep with the run.
        log_dir: folder for wandb's files, made if need be.
        run_id: id of a run to go on with; None begins a new one.

    Raises:
        ImportError: if wandb is not installed; the message says what to install.
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
            project=project or os.environ.get(PROJECT_VARIABLE),
            entity=entity or os.environ.get(ENTITY_VARIABLE),
            group=group,
            name=name,
            config=dict(config or {}),
            dir=None if log_dir is None else str(log_dir),
            id=run_id,
            resume="allow" if run_id is not None else None,
        )
        self._closed = False

    @property
    def run_id(self) -> str:
        """The run's id, with which a resumed process goes on with it."""
        return str(self._run.id)

    def log(self, metrics: Mapping[str, Number], *, section: str, axes: Mapping[str, Number]) -> None:
        """Sends one set of metrics."""
        named = {f"{section}/{name}": value for name, value in as_floats(metrics).items()}
        self._run.log(named | as_floats(axes))

    def close(self) -> None:
        """Finishes the run."""
        if not self._closed:
            self._closed = True
            self._run.finish()
