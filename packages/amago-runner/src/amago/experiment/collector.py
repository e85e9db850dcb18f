"""Collector: collects training data, with exploration, and records it to trajectory files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from amago.distributed.processes import Processes
from amago.envs.interrupts import defer_interrupts
from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import SplitRecorder, TrajectoryRecorder
from amago.envs.vector import SplitVectorEnv, VectorEnv
from amago.experiment.config import ExperimentConfig
from amago.experiment.random_streams import RandomStreams
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.experiment.rollout_between import RolloutBetween
from amago.experiment.split_rollout import SplitRollout
from amago.tracking import TimeBreakdown

T = TypeVar("T")


class Collector:
    """Runs an agent in the training environments; episodes and hidden states continue from call to call.

    Args:
        policy: The agent.
        envs: The training environments, with their exploration wrappers. With a `SplitVectorEnv`, the agent acts
            for one half of the actors while the environments of the other half step.
        recorder: Writes trajectory files; None discards the data. A `SplitRecorder` for a `SplitVectorEnv`.
        streams: Random streams of environments and actions.
        times: Receives the time of environments, policy and recording.

    Attributes:
        reset_due: Whether the next collection starts with a reset of the environments.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        envs: VectorEnv | SplitVectorEnv,
        recorder: TrajectoryRecorder | SplitRecorder | None,
        streams: RandomStreams,
        *,
        times: TimeBreakdown | None = None,
    ) -> None:
        self.envs = envs
        self.recorder = recorder
        self.reset_due = True
        self._streams = streams
        self._times = TimeBreakdown() if times is None else times
        self._rollout: Rollout | SplitRollout
        if isinstance(envs, SplitVectorEnv):
            assert recorder is None or isinstance(recorder, SplitRecorder)
            self._rollout = SplitRollout(policy, envs, recorder=recorder, times=self._times)
        else:
            assert not isinstance(recorder, SplitRecorder)
            self._rollout = Rollout(policy, envs, recorder=recorder, times=self._times)

    @property
    def hidden_state(self) -> Any:
        """Hidden state of the policy after the last step."""
        return self._rollout.hidden_state

    @hidden_state.setter
    def hidden_state(self, hidden_state: Any) -> None:
        self._rollout.hidden_state = hidden_state

    @property
    def stats(self) -> EpisodeStats:
        """Statistics of the episodes that finished in the last collection."""
        return self._rollout.stats

    @property
    def refused_segments(self) -> int:
        """Trajectories of this object that were not saved because a number in them is not finite."""
        return 0 if self.recorder is None else self.recorder.refused_segments

    @property
    def steps_by_env_name(self) -> dict[str, int]:
        """Timesteps collected by this object, by environment name."""
        return self._rollout.steps_by_env_name

    def collect(
        self,
        epoch: int,
        *,
        timesteps: int | None,
        episodes: int | None = None,
        hidden_state: Any = None,
        sample: bool = True,
        render: bool = False,
        progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> EpisodeStats:
        """Collects data and waits until finished trajectories are on disk.

        Args:
            epoch: Key of the random streams.
            timesteps: Timesteps per actor; None for no limit.
            episodes: Number of episodes to collect; None for no limit.
            hidden_state: Replaces the policy's hidden state; None continues with it.
            sample: Sample actions from the policy; False takes its mode.
            render: Render after every step.
            progress: Called after every step with the number of timesteps.
            stop: Called after every step; True ends the collection.

        Returns:
            Statistics of the episodes that finished.

        Raises:
            TrajectoryWriteError: a trajectory could not be written; it is retried with the next ones.
        """
        self._begin(epoch)
        if hidden_state is not None:
            self._rollout.hidden_state = hidden_state
        with self._streams.acting(epoch):
            self._rollout.run(
                timesteps=timesteps,
                episodes=episodes,
                sample=sample,
                render=render,
                progress=progress,
                stop=stop,
            )
        self._flush()
        return self._rollout.stats

    def collect_between(
        self,
        items: Iterator[T],
        count: int,
        epoch: int,
        *,
        timesteps: int,
        sample: bool = True,
        progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Generator[T]:
        """As `collect`, but spread over the `count` items that it yields; see `RolloutBetween`.

        Actions are drawn from torch's generator as it is then. `stats` are complete after the last item.
        """
        if isinstance(self._rollout, SplitRollout):
            raise TypeError("envs is a SplitVectorEnv, which only collect supports: pass a VectorEnv")
        self._begin(epoch)
        between = RolloutBetween(self._rollout, timesteps, sample=sample, progress=progress, stop=stop)
        yield from between.spread_over(items, count)
        self._flush()

    def _begin(self, epoch: int) -> None:
        """Resets the environments if that is due, and starts new statistics."""
        self._times.lap("other")
        if self.reset_due or not self._rollout.started:
            self._rollout.reset(seed=self._streams.env_seed(epoch))
            self.reset_due = False
        self._rollout.stats = EpisodeStats()

    def _flush(self) -> None:
        """Waits until finished trajectories are on disk."""
        self._times.lap("other")
        if self.recorder is not None:
            self.recorder.flush()
        self._times.lap("recording")

    def state_dict(self) -> dict[str, Any]:
        """State of exploration and recorder, JSON-serializable.

        Unfinished episodes are written to disk and the environments are reset before the next collection, since a
        resumed run cannot continue them: the run then does what a resumed run does.
        """
        self._write_unfinished()
        self.reset_due = True
        return {
            "exploration": self.envs.exploration_state(),
            "recorder": None if self.recorder is None else self.recorder.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`.

        Raises:
            ValueError: the state was saved with another setting of double buffering or of exploration.
        """
        if state["exploration"]:
            self.envs.load_exploration_state(state["exploration"])
        if self.recorder is not None and state["recorder"] is not None:
            if isinstance(self.recorder, SplitRecorder) != ("halves" in state["recorder"]):
                raise ValueError("double_buffer differs from the run that saved the checkpoint: use the same")
            self.recorder.load_state_dict(state["recorder"])
        self.reset_due = True

    def close(self) -> None:
        """Writes unfinished episodes to disk and closes the recorder; the environments stay open."""
        if self.recorder is not None:
            try:
                self._write_unfinished()
            finally:
                self.recorder.close()

    def _write_unfinished(self) -> None:
        if self.recorder is not None:
            with defer_interrupts():
                self.recorder.cut()
            self.recorder.flush()


def make_training_recorder(
    config: ExperimentConfig, envs: VectorEnv | SplitVectorEnv, streams: RandomStreams, processes: Processes
) -> TrajectoryRecorder | SplitRecorder | None:
    """The recorder that writes collected data to the dataset's folder; None if the dataset has none."""
    assert config.dataset is not None
    folder = config.dataset.save_new_trajs_to
    if folder is None:
        return None
    halves = envs.halves if isinstance(envs, SplitVectorEnv) else (envs,)
    # Random, so that runs can share a buffer, but ordered by rank: files are sampled in the order of writers.
    first_writer = processes.broadcast_from_main(secrets.randbelow(4096 - len(halves) * processes.count))
    first_number = secrets.randbelow(1 << 16)  # runs with equal writer IDs still differ
    recorders = [
        make_recorder(
            config,
            half.num_envs,
            folder,
            streams.recorder(index),
            writer_id=f"{first_writer + len(halves) * processes.rank + index:03x}",
            first_number=first_number,
        )
        for index, half in enumerate(halves)
    ]
    return SplitRecorder(*recorders) if len(recorders) == 2 else recorders[0]


def make_recorder(
    config: ExperimentConfig,
    num_envs: int,
    save_to: str | Path,
    rng: np.random.Generator,
    *,
    whole_episodes: bool = False,
    writer_id: str | None = None,
    first_number: int = 0,
) -> TrajectoryRecorder:
    """A recorder with the trajectory settings of an experiment.

    Args:
        config: The experiment.
        num_envs: Number of actors.
        save_to: Folder of the files.
        rng: Generator of staggered lengths.
        whole_episodes: Do not split long episodes.
        writer_id: See `TrajectoryRecorder`; drawn if None.
        first_number: See `TrajectoryRecorder`.
    """
    return TrajectoryRecorder(
        num_envs,
        save_to=Path(save_to).expanduser(),
        save_as=config.save_trajs_as,
        save_len=float("inf") if whole_episodes else config.traj_save_len,
        max_seq_len=config.max_seq_len,
        stagger=config.stagger_traj_file_lengths and not whole_episodes,
        rng=rng,
        writer_id=writer_id,
        first_number=first_number,
    )
