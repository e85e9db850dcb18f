"""Rollout: an agent acts in a vector environment, step by step on its hidden state.

This is the inner loop of collection and evaluation: per step one call of the agent, one of the environment and one
of the recorder. No Python code runs per actor, except for actors whose episode ends.

Shapes: N actors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from amago.agent import BaseAgent
from amago.agent.acting import compile_actor
from amago.envs.interrupts import defer_interrupts
from amago.envs.metrics import EpisodeStats, StepCounts
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import PolicyInput, VectorEnv
from amago.experiment.episode_stats import RolloutLimits, RunningEpisodes
from amago.tracking import TimeBreakdown


class ActingPolicy:
    """An agent as it acts in rollouts: by a compiled actor where it can be compiled, else by its modules.

    Rollouts of one agent share it, so that an agent which cannot be compiled is tried only once.

    Args:
        agent: the agent.
        device: device of the agent; it is compiled on a CPU only.
        autocast: act in bf16 autocast, with the modules.
    """

    def __init__(self, agent: BaseAgent, *, device: torch.device, autocast: bool = False) -> None:
        self.agent = agent
        self.device = device
        self.autocast = autocast
        self._can_compile = device.type == "cpu" and not autocast
        self._compiled: Any = None

    def with_current_weights(self) -> Any:
        """The compiled actor with the agent's current weights, or the agent itself; both have `get_actions`.

        The agent must be in eval mode.
        """
        if self._can_compile and (self._compiled is None or not self._compiled.refresh()):
            self._compiled = compile_actor(self.agent)
            self._can_compile = self._compiled is not None
        return self.agent if self._compiled is None else self._compiled


class Rollout:
    """Steps an agent in a vector environment; episodes and hidden state carry over from one `run` to the next.

    Args:
        policy: the agent that acts; it is in eval mode during a run.
        vector_env: N environments.
        recorder: receives every step, to write trajectories.
        stats: receives finished episodes; replace the attribute to start new statistics.
        times: receives the time of environments, policy and recording.

    Attributes:
        inputs: the input of the agent's next action; None before the first reset.
        hidden_state: hidden state of all N actors.
        steps_by_env_name: steps so far, up to date after each run.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        vector_env: VectorEnv,
        *,
        recorder: TrajectoryRecorder | None = None,
        stats: EpisodeStats | None = None,
        times: TimeBreakdown | None = None,
    ) -> None:
        self.agent = policy.agent
        self.vector_env = vector_env
        self.recorder = recorder
        self.stats = EpisodeStats() if stats is None else stats
        self.times = TimeBreakdown() if times is None else times
        self.inputs: PolicyInput | None = None
        self.hidden_state: Any = None
        self.steps_by_env_name: dict[str, int] = {}
        self._policy = policy
        self._device = policy.device
        self._autocast = policy.autocast
        self._actor: Any = None  # the compiled actor, or the agent
        self._running = RunningEpisodes(vector_env.num_envs)
        self._counts = StepCounts(self.steps_by_env_name)
        self._viewed: PolicyInput | None = None
        self._tensors: tuple[dict[str, Tensor], Tensor, Tensor] | None = None

    @property
    def started(self) -> bool:
        """Whether `reset` has been called."""
        return self.inputs is not None

    def reset(self, seed: int | None = None) -> None:
        """Starts new episodes with an initial hidden state; writes unfinished episodes first.

        Args:
            seed: seed of the environments' random streams; None keeps the streams.
        """
        self.inputs = None
        if self.recorder is not None:
            with defer_interrupts():
                self.recorder.cut()
        self.times.lap("recording")
        inputs = self.vector_env.reset(seed=seed)
        self.times.lap("environments")
        self._running.clear()
        self.hidden_state = self.agent.init_hidden_state(self.vector_env.num_envs, self._device)
        if self.recorder is not None:
            self.recorder.begin(inputs, self.vector_env.env_names)
        self.inputs = inputs

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
        finishes in this run. Counting the episodes that finish first would favour short ones. Ctrl-C ends the run
        after the running step is recorded.

        Args:
            timesteps: steps per actor; None for no limit.
            episodes: episodes of all actors together; None for no limit.
            sample: sample actions from the policy; False takes its mode.
            render: render the first environment after every step.
            progress: called after every step with N.

        Raises:
            ValueError: if neither limit is given, or an observation is not finite.
            TrajectoryWriteError: if a file could not be written; the step is recorded, and the next `run`
                continues the episodes. After any other exception in a step, the next `run` begins new episodes.
        """
        limits = RolloutLimits(timesteps, episodes, self.vector_env.num_envs)
        if not self.started:
            self.reset()
        with self.acting(), defer_interrupts() as interrupts:
            while not limits.reached():
                try:
                    self.begin_step(sample)
                    self.finish_step(limits.remaining)
                except TrajectoryWriteError:
                    raise
                except BaseException:
                    # The environments may have taken a step that was not recorded.
                    self.inputs = None
                    raise
                limits.done += 1
                if render:
                    self.vector_env.render()
                if progress is not None:
                    progress(self.vector_env.num_envs)
                self.times.lap("other")
                interrupts.deliver()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Prepares the agent for a run: eval mode, and a compiled actor with its current weights."""
        was_training = self.agent.training
        self.agent.eval()
        try:
            self._actor = self._policy.with_current_weights()
            self.times.lap("policy")
            yield
        finally:
            self.agent.train(was_training)
            self._counts.settle()

    def begin_step(self, sample: bool) -> None:
        """Acts, and begins a step of the environments; `finish_step` must be next."""
        actions = self._act(sample)
        self.times.lap("policy")
        self.vector_env.step_async(actions)
        self.times.lap("environments")

    def finish_step(self, remaining: npt.NDArray[np.int64] | None) -> None:
        """Waits for the environments, resets hidden rows, and counts and records the step.

        Args:
            remaining: (N,) episodes that each actor still contributes, decremented; None for no limit.

        Raises:
            TrajectoryWriteError: if a file could not be written; everything else is done then.
        """
        step = self.vector_env.step_wait()
        self.times.lap("environments")
        self.inputs = step.inputs
        if step.done_rows.size:
            dones = step.terminated | step.truncated
            with torch.inference_mode():
                self.hidden_state = self.agent.reset_hidden_state(self.hidden_state, dones)
            self._counts.take_back([step.env_names[row] for row in step.reset_rows.tolist()])
        self._counts.add(step.env_names)
        self._running.add(step, self.stats, remaining)
        if self.recorder is not None:
            self.recorder.add(step)
        self.times.lap("recording")

    def _act(self, sample: bool) -> npt.NDArray[Any]:
        """The agent's actions, (N, ...) in the form of the vector environment.

        Raises:
            ValueError: if an observation or an action is not finite.
        """
        try:
            actions = self._get_actions(sample)
        except (RuntimeError, ValueError) as error:
            if (problem := self._nonfinite_observation()) is not None:
                raise ValueError(problem) from error
            raise
        array: npt.NDArray[Any] = actions.squeeze(1).cpu().numpy()
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                self._nonfinite_observation() or "the agent's actions are not finite: its weights are not"
            )
        return array

    def _get_actions(self, sample: bool) -> Tensor:
        """Actions (N, 1, ...) for `inputs`, as sequences of length one; replaces the hidden state."""
        obs, rl2s, time_idxs = self._input_tensors()
        if self._device.type != "cpu":
            obs = {key: value.to(self._device, non_blocking=True) for key, value in obs.items()}
            rl2s = rl2s.to(self._device, non_blocking=True)
            time_idxs = time_idxs.to(self._device, non_blocking=True)
        actions: Tensor
        with torch.inference_mode(), self._precision():
            actions, self.hidden_state = self._actor.get_actions(
                obs=obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=self.hidden_state, sample=sample
            )
        return actions

    def _input_tensors(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Observations, rl2s and time indices (N, 1, ...) on the CPU.

        They are views of the vector environment's arrays, created once because it reuses these in every step.
        """
        assert self.inputs is not None
        if self._tensors is None or self._viewed is not self.inputs:
            self._viewed = self.inputs
            self._tensors = (
                {key: torch.from_numpy(value).unsqueeze(1) for key, value in self.inputs.obs.items()},
                torch.from_numpy(self.inputs.rl2s).unsqueeze(1),
                torch.from_numpy(self.inputs.time_idxs).view(-1, 1, 1),
            )
        return self._tensors

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        # Entering autocast takes as long as a small layer, so it is avoided where it changes nothing.
        if not self._autocast and not torch.is_autocast_enabled(self._device.type):
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def _nonfinite_observation(self) -> str | None:
        """An error message for the first observation that is NaN or infinite, if there is one."""
        assert self.inputs is not None
        for key, rows in self.inputs.obs.items():
            finite = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
            if not finite.all():
                row = int(np.argmin(finite))
                return (
                    f"observation {key!r} of environment {row} ({self.vector_env.env_names[row]!r}) is not "
                    f"finite: {rows[row]}; correct what the environment returns"
                )
        return None
