"""Warnings of runs in which nothing happens, with their reasons and remedies; the main process prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amago.utils import amago_warning

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment


def warn_of_no_data(experiment: Experiment) -> None:
    """Says why an epoch of a run that collects could not learn."""
    assert experiment.dataset is not None
    if not experiment.processes.is_main:
        return
    reason = f"the dataset is not ready ({experiment.dataset.get_description()})"
    recorder = experiment.collector.recorder if experiment.collector is not None else None
    if recorder is not None and not recorder.saved_files:
        timesteps = experiment.train_timesteps_per_epoch
        reason = (
            f"no trajectory is finished yet: no episode ended within {timesteps} timesteps per actor, and "
            f"traj_save_len={experiment.traj_save_len:g} is longer. Set traj_save_len to at most "
            f"{max(timesteps, experiment.max_seq_len)}, which writes longer episodes in segments, or collect more "
            "timesteps per epoch"
        )
    amago_warning(f"an epoch made no updates: {reason}", stacklevel=5)


def warn_without_updates(experiment: Experiment) -> None:
    """Warns if the run has ended without a single update, unless it was not to learn."""
    skipped = experiment.counters.skipped_updates
    if experiment.counters.gradient_steps == skipped and experiment.learns and experiment.processes.is_main:
        amago_warning(
            f"the run {experiment.run_name!r} has ended without an update, so its policy is untrained"
            + (f": all {skipped} updates were skipped because they were not finite" if skipped else ""),
            stacklevel=4,
        )


def warn_of_no_validation(experiment: Experiment) -> None:
    """Warns that no episode of a validation finished."""
    if experiment.processes.is_main:
        amago_warning(
            f"no episode finished in an evaluation of {experiment.val_timesteps_per_epoch} timesteps per actor, "
            "so it has no metrics: set val_timesteps_per_epoch to at least the length of an episode",
            stacklevel=5,
        )


def warn_of_no_test(experiment: Experiment, timesteps: int | None) -> None:
    """Warns that no episode of `evaluate_test` finished within `timesteps`."""
    if experiment.processes.is_main:
        amago_warning(
            f"no episode finished within {timesteps} timesteps per actor, so there are no metrics: pass more "
            "timesteps to evaluate_test, or a number of episodes and no limit",
            stacklevel=4,
        )
