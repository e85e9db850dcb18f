"""Recording: from the steps of a vector environment to trajectory files.

- `recorder`: TrajectoryRecorder, and SplitRecorder for two halves of a vector environment
- `episode_buffer`: the steps of unfinished segments of all rows
- `file_writer`: the thread that writes files
- `sequence_wrapper`: SequenceWrapper and EnvCreator, for single environments that record themselves
"""

from amago.envs.recorder.file_writer import TrajectoryWriteError
from amago.envs.recorder.recorder import SplitRecorder, TrajectoryRecorder
from amago.envs.recorder.sequence_wrapper import EnvCreator, SequenceWrapper

__all__ = [
    "EnvCreator",
    "SequenceWrapper",
    "SplitRecorder",
    "TrajectoryRecorder",
    "TrajectoryWriteError",
]
