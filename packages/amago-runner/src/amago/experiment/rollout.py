"""Rollouts: the agent acts in a vector environment, step by step on its hidden state.

The hot path of collecting and evaluating: per step one call of the agent and one of the environment, and no
Python that runs once per actor, except for actors whose episode ends.

Shapes: N actors, A width of the action representation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from amago.agent import BaseAgent
from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import PolicyInput, VectorEnv, VectorStep
from amago.experiment.interrupts import InterruptGate

_UNCHANGED = contextlib.nullcontext()


class Rollout:
    """An agent in a vector environment; episodes and hidden state carry over from one `run` to the next.

    Args:
        agent: acts; it is put into eval mode for each run.
        vector_env: N environments.
        device: of the agent.
        autocast: act in bf16 where torch deems it safe.
        recorder: receives every step, to write trajectories.
        stats: receives the episodes that finish; replace the attribute to start another count.
    """

    def __init__(
        self,
        agent: BaseAgent,
        vector_env: VectorEnv,
        *,
        device: torch.device,
        autocast: bool = False,
        recorder: TrajectoryRecorder | None = None,
        stats: EpisodeStats | None = None,
    ) -> None:
        self.agent = agent
        self.vector_env = vector_env
        self.recorder = recorder
        self.stats = EpisodeStats() if stats is None else stats
        self.hidden_state: Any = None
        self.steps_by_env_name: dict[str, int] = {}
        self._device = device
        self._autocast = autocast
        self._inputs: PolicyInput | None = None
        self._viewed: PolicyInput | None = None
        self._running = _RunningEpisodes(vector_env.num_envs)
        self._gate = InterruptGate()
        self._names: list[str] = []
        self._steps_under_names = 0

    @property
    def started(self) -> bool:
        """Whether `reset` has been called."""
        return self._inputs is not None

    def reset(self, seed: int | None = None) -> None:
        """Starts new episodes with a blank hidden state; unfinished ones are written as they are.

        Args:
            seed: of the environments' random streams; None lets them go on.
        """
        if self.recorder is not None:
            self.recorder.cut()
        self._inputs = self.vector_env.reset(seed=seed)
        self._running.clear()
        self.hidden_state = self.agent.init_hidden_state(self.vector_env.num_envs, self._device)
        if self.recorder is not None:
            self.recorder.begin(self._inputs, self.vector_env.env_names)

    def run(
        self,
        timesteps: int | None = None,
        episodes: int | None = None,
        sample: bool = True,
        render: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Acts until `timesteps` steps per actor are done or `episodes` episodes are counted.

        With `episodes`, every actor contributes the same number (give or take one): the first ones that it
        finishes in this run. Counting whichever finish first would favour short episodes.

        Args:
            timesteps: steps per actor; None for no limit.
            episodes: episodes of all actors together; None for no limit.
            sample: draw actions from the policy; False takes its mode.
            render: render the environment after every step.
            progress: called after every step with N.

        Raises:
            ValueError: neither limit is given.
            TrajectoryWriteError: a file could not be written; the rollout can go on where it is. After any other
                exception the next `run` begins new episodes.
        """
        if timesteps is None and episodes is None:
            raise ValueError("give timesteps or episodes: a rollout without a limit would never end")
        if not self.started:
            self.reset()
        num_envs = self.vector_env.num_envs
        remaining = None if episodes is None else _quotas(episodes, num_envs)
        was_training = self.agent.training
        self.agent.eval()
        done = 0
        try:
            with self._gate.watching():
                while (timesteps is None or done < timesteps) and (remaining is None or remaining.any()):
                    step = self._step(sample)
                    self._count(step, remaining)
                    self._record(step)
                    done += 1
                    if render:
                        self.vector_env.render()
                    if progress is not None:
                        progress(num_envs)
        except TrajectoryWriteError:
            raise
        except BaseException:
            # Environments may have taken a step that was not recorded, so their episodes cannot go on.
            self._inputs = None
            raise
        finally:
            self.agent.train(was_training)
            self._settle_names()

    def _step(self, sample: bool) -> VectorStep:
        """One action in every environment."""
        step = self.vector_env.step(self._act(sample))
        self._inputs = step.inputs
        if step.done_rows.size or step.reset_rows.size:
            dones = step.terminated | step.truncated
            dones[step.reset_rows] = True
            with torch.inference_mode():
                self.hidden_state = self.agent.reset_hidden_state(self.hidden_state, dones)
        return step

    def _record(self, step: VectorStep) -> None:
        """Hands a step to the recorder; done last, so that a write that failed has left nothing undone."""
        if self.recorder is not None:
            with self._gate:
                self.recorder.add(step)

    def _act(self, sample: bool) -> npt.NDArray[Any]:
        """The agent's actions, (N, ...) as the vector environment takes them.

        Raises:
            ValueError: an observation is not finite, and so no action could be drawn or the action is neither.
        """
        inputs = self._inputs
        assert inputs is not None
        try:
            actions = self._ask_agent(inputs, sample)
        except (RuntimeError, ValueError) as error:
            if (problem := self._nonfinite(inputs)) is not None:
                raise ValueError(problem) from error
            raise
        if actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise ValueError(
                self._nonfinite(inputs) or "the agent's actions are not finite: its weights are not"
            )
        return actions

    def _ask_agent(self, inputs: PolicyInput, sample: bool) -> npt.NDArray[Any]:
        with torch.inference_mode(), self._precision():
            obs, rl2s, time_idxs = self._tensors(inputs)
            actions, self.hidden_state = self.agent.get_actions(
                obs=obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=self.hidden_state, sample=sample
            )
        array: npt.NDArray[Any] = (actions if actions.device.type == "cpu" else actions.cpu()).numpy()
        return array.reshape(len(array), *array.shape[2:])

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast as it was asked for; entering it takes as long as a small layer, so only where it differs."""
        if not self._autocast and not torch.is_autocast_enabled(self._device.type):
            return _UNCHANGED
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def _tensors(self, inputs: PolicyInput) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Observations, rl2s and time indices as sequences of length one, (N, 1, ...), on the agent's device.

        On the CPU they are views of the arrays, which vector environments use again for every step. They are kept,
        because every torch call lets go of the interpreter, and the thread that writes files may take it.
        """
        if self._viewed is not inputs:
            self._viewed = inputs
            self._views = (
                {key: torch.from_numpy(value).unsqueeze(1) for key, value in inputs.obs.items()},
                torch.from_numpy(inputs.rl2s).unsqueeze(1),
                torch.from_numpy(inputs.time_idxs).view(-1, 1, 1),
            )
        if self._device.type == "cpu":
            return self._views
        obs, rl2s, time_idxs = self._views
        return (
            {key: value.to(self._device, non_blocking=True) for key, value in obs.items()},
            rl2s.to(self._device, non_blocking=True),
            time_idxs.to(self._device, non_blocking=True),
        )

    def _nonfinite(self, inputs: PolicyInput) -> str | None:
        """Which observation that the agent saw is NaN or infinite, if one is."""
        for key, rows in inputs.obs.items():
            finite = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
            if not finite.all():
                row = int(np.argmin(finite))
                name = self.vector_env.env_names[row]
                return (
                    f"observation {key!r} of environment {row} ({name!r}) is not finite: {rows[row]}; correct "
                    "what the environment returns"
                )
        return None

    def _count(self, step: VectorStep, remaining: npt.NDArray[np.int64] | None) -> None:
        """Adds a step to running episodes and frame counts, and finished episodes to the statistics."""
        # Vector environments change names in a new list, so most steps need no comparison of them.
        if step.env_names is not self._names:
            self._settle_names()
            self._names = step.env_names
        self._steps_under_names += 1
        self._running.add(step)
        for row in step.reset_rows.tolist():
            name = step.env_names[row]
            self.steps_by_env_name[name] = self.steps_by_env_name.get(name, 0) - 1
            self._running.clear_row(row)
        for row in step.done_rows.tolist():
            if remaining is None or remaining[row] > 0:
                self._running.finish(row, step.env_names[row], self.stats)
            if remaining is not None and remaining[row] > 0:
                remaining[row] -= 1
            self._running.clear_row(row)

    def _settle_names(self) -> None:
        """Counts the steps since the environments' names last changed; doing it per step would cost O(N)."""
        for name in self._names if self._steps_under_names else ():
            self.steps_by_env_name[name] = self.steps_by_env_name.get(name, 0) + self._steps_under_names
        self._steps_under_names = 0


def _quotas(episodes: int, num_envs: int) -> npt.NDArray[np.int64]:
    """How many episodes each actor contributes, (N,): as equal as can be."""
    share, rest = divmod(episodes, num_envs)
    return np.where(np.arange(num_envs) < rest, share + 1, share).astype(np.int64)


class _RunningEpisodes:
    """Return, length and reported metrics of the N episodes in progress."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._reported: dict[int, list[dict[str, float]]] = {}

    def clear(self) -> None:
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._reported.clear()

    def clear_row(self, row: int) -> None:
        self._returns[row] = 0.0
        self._lengths[row] = 0
        self._reported.pop(row, None)

    def add(self, step: VectorStep) -> None:
        self._returns += step.rewards
        self._lengths += 1
        for row, metrics in step.metrics:
            self._reported.setdefault(row, []).append(metrics)

    def finish(self, row: int, env_name: str, stats: EpisodeStats) -> None:
        stats.add_episode(env_name, float(self._returns[row]), int(self._lengths[row]))
        for metrics in self._reported.get(row, ()):
            stats.add_metrics(env_name, metrics)
