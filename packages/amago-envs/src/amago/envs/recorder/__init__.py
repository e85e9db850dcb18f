"""From steps to trajectory files, beside the stepping path.

- `lengths`: after how many steps a piece of an episode is written
- `pieces`: the steps of unfinished pieces of all rows, in a few arrays
- `writer`: the thread that writes files
- `recorder`: TrajectoryRecorder, which joins the three
- `wrapper`: SequenceWrapper and EnvCreator, for single environments that record themselves
"""

from amago.envs.recorder.recorder import TrajectoryRecorder
from amago.envs.recorder.wrapper import EnvCreator, SequenceWrapper
from amago.envs.recorder.writer import TrajectoryWriteError

__all__ = ["EnvCreator", "SequenceWrapper", "TrajectoryRecorder", "TrajectoryWriteError"]
