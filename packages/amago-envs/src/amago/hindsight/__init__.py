"""Trajectory data: timesteps, trajectories, relabelling, and the files in which trajectories are kept."""

from amago.hindsight.filenames import trajectory_filename
from amago.hindsight.files import atomic_file
from amago.hindsight.relabel import NoOpRelabeler, Relabeler
from amago.hindsight.storage import (
    SAVE_FORMATS,
    CorruptTrajectoryError,
    PickledTrajectoryError,
    TrajectoryTooLargeError,
    load_slice,
    load_trajectory,
    parse_filename,
    remove_unfinished,
    save_trajectory,
    trajectory_length,
    verify_trajectory,
    write_trajectory,
)
from amago.hindsight.timestep import Array, Timestep, split_batched_timestep
from amago.hindsight.trajectory import FrozenTraj, Trajectory

__all__ = [
    "SAVE_FORMATS",
    "Array",
    "CorruptTrajectoryError",
    "FrozenTraj",
    "NoOpRelabeler",
    "PickledTrajectoryError",
    "Relabeler",
    "Timestep",
    "Trajectory",
    "TrajectoryTooLargeError",
    "atomic_file",
    "load_slice",
    "load_trajectory",
    "parse_filename",
    "remove_unfinished",
    "save_trajectory",
    "split_batched_timestep",
    "trajectory_filename",
    "trajectory_length",
    "verify_trajectory",
    "write_trajectory",
]
