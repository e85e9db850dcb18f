"""Trajectory data: timesteps, trajectories, relabelling, and trajectory files."""

from amago.hindsight.atomic_writes import UNFINISHED_SUFFIX, atomic_file, remove_unfinished
from amago.hindsight.filenames import (
    SAVE_FORMATS,
    SUFFIXES,
    TrajectoryName,
    clean_env_name,
    env_name_of,
    parse_filename,
    trajectory_filename,
)
from amago.hindsight.relabel import NoOpRelabeler, Relabeler
from amago.hindsight.timestep import Array, Timestep, split_batched_timestep
from amago.hindsight.trajectory import FrozenTraj, Trajectory
from amago.hindsight.trajectory_files import (
    CorruptTrajectoryError,
    PickledTrajectoryError,
    load_slice,
    load_trajectory,
    save_trajectory,
    trajectory_length,
    write_trajectory,
)

__all__ = [
    "SAVE_FORMATS",
    "SUFFIXES",
    "UNFINISHED_SUFFIX",
    "Array",
    "CorruptTrajectoryError",
    "FrozenTraj",
    "NoOpRelabeler",
    "PickledTrajectoryError",
    "Relabeler",
    "Timestep",
    "Trajectory",
    "TrajectoryName",
    "atomic_file",
    "clean_env_name",
    "env_name_of",
    "load_slice",
    "load_trajectory",
    "parse_filename",
    "remove_unfinished",
    "save_trajectory",
    "split_batched_timestep",
    "trajectory_filename",
    "trajectory_length",
    "write_trajectory",
]
