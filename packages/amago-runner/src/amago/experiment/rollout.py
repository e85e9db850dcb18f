"""Rollouts: the agent acts in a vector environment, step by step on its hidden state.

The hot path of collecting and evaluating: per step one call of the agent and one of the environment, or two for a
half of the actors each (`double_buffer`), and no Python that runs once per actor, except for actors whose episode
ends. Where the agent can, it begins with the next actions while environments step and are recorded.

Shapes: N actors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amago.agent import BaseAgent
from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import PartedVectorEnv, PolicyInput, SyncVectorEnv, VectorEnv, VectorStep
from amago.experiment.double_buffer import Choice, Halves
from amago.experiment.episodes import Limits, RunningEpisodes
from amago.experiment.interrupts import InterruptGate, interrupts_held_off
from amago.experiment.lane import Lane


class Rollout:
    """An agent in a vector environment; episodes and hidden state carry over from one `run` to the next.

    Args:
        agent: acts; it is put into eval mode for each run.
        vector_env: N environments.
        device: of the agent.
        autocast: act in bf16 where torch deems it safe.
        recorder: receives every step, to write trajectories.
        stats: receives the episodes that finish; replace the attribute to start another count.
        double_buffer: act for one half of the actors while the environments of the other step, where these run in
            two or more worker processes; nothing changes elsewhere. None tries both ways, 320 steps each, and
            keeps the quicker one; then what the agent draws depends on how long things take.
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
        double_buffer: bool | None = None,
    ) -> None:
        self.vector_env = vector_env
        self.recorder = recorder
        self.stats = EpisodeStats() if stats is None else stats
        self.steps_by_env_name: dict[str, int] = {}
        self._running = RunningEpisodes(vector_env.num_envs)
        self._gate = InterruptGate()
        self._failure: TrajectoryWriteError | None = None

        def lane(rows: slice) -> Lane:
            return Lane(
                agent,
                vector_env,
                device=device,
                autocast=autocast,
                rows=rows,
                running=self._running.of(rows),
                steps_by_env_name=self.steps_by_env_name,
            )

        self._whole = lane(slice(0, vector_env.num_envs))
        self._halves: Halves | None = None
        if isinstance(vector_env, PartedVectorEnv) and len(vector_env.parts) == 2:
            self._halves = Halves(vector_env, self._whole, [lane(rows) for rows in vector_env.parts])
        self._must_overlap = bool(double_buffer)
        self._choice = Choice(False if self._halves is None else double_buffer)

    @property
    def agent(self) -> BaseAgent:
        """Who acts."""
        return self._whole.agent

    @property
    def started(self) -> bool:
        """Whether `reset` has been called."""
        return self.inputs is not None

    @property
    def inputs(self) -> PolicyInput | None:
        """What the agent acts on next; None before the first reset."""
        return self._whole.inputs

    @property
    def double_buffered(self) -> bool:
        """Whether the next step acts for one half of the actors while the other half steps."""
        return self._choice.overlapped

    @property
    def hidden_state(self) -> Any:
        """What the agent remembers of all actors; a copy while halves of them are stepped in turns.

        Reading it drops the actions that the agent has begun with, as it may be changed in place.
        """
        self._whole.drop_begun()
        if self._halves is not None and self._halves.apart:
            return self._halves.joined()
        return self._whole.hidden_state

    @hidden_state.setter
    def hidden_state(self, hidden_state: Any) -> None:
        if self._halves is not None and self._halves.apart:
            self._halves.divide(hidden_state)
        else:
            self._whole.drop_begun()
            self._whole.hidden_state = hidden_state

    def reset(self, seed: int | None = None) -> None:
        """Starts new episodes with a blank hidden state; unfinished ones are written as they are.

        Args:
            seed: of the environments' random streams; None lets them go on.
        """
        self._whole.drop_begun()
        if self.recorder is not None:
            with interrupts_held_off():
                self.recorder.cut()
        self._whole.inputs = self.vector_env.reset(seed=seed)
        self._running.clear()
        if self._halves is not None:
            self._halves.forget()
        self._whole.hidden_state = self._whole.blank_hidden_state()
        if self.recorder is not None:
            self.recorder.begin(self._whole.inputs, self.vector_env.env_names)

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
            render: render the environment after every step, all of which are then taken together.
            progress: called after every step with N. The agent may have begun with the next actions by then, so
                weights and seeds that are set here count from the actions after those.

        Raises:
            ValueError: neither limit is given.
            TypeError, ValueError: `double_buffer` is set, and the agent's hidden state cannot be divided.
            TrajectoryWriteError: a file could not be written; the rollout can go on where it is. After any other
                exception the next `run` begins new episodes.
        """
        if timesteps is None and episodes is None:
            raise ValueError("give timesteps or episodes: a rollout without a limit would never end")
        if not self.started:
            self.reset()
        limits = Limits(timesteps, episodes, self.vector_env.num_envs)
        was_training = self.agent.training
        self.agent.eval()
        try:
            with self._gate.watching():
                self._advance(limits, sample, render, progress)
        except BaseException:
            # Environments may have taken a step that was not recorded, so their episodes cannot go on.
            self._whole.inputs = None
            raise
        finally:
            self.agent.train(was_training)
            for lane in self._lanes():
                lane.drop_begun()
                lane.settle_counts()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _advance(
        self, limits: Limits, sample: bool, render: bool, progress: Callable[[int], None] | None
    ) -> None:
        """Steps until the limits are reached or a write has failed, one way or the other."""
        num_envs = self.vector_env.num_envs

        def stepped() -> None:
            limits.done += 1
            if render:
                self.vector_env.render()
            elif self._choice.undecided:
                self._choice.note()
            if progress is not None:
                progress(num_envs)

        self._choice.begin()
        while not limits.reached() and self._failure is None:
            if not render and self._overlaps():
                self._step_in_turns(limits, sample, stepped)
            else:
                self._step_together(limits, sample, not render, stepped)

    def _lanes(self) -> list[Lane]:
        return [self._whole] if self._halves is None else [self._whole, *self._halves.lanes]

    def _overlaps(self) -> bool:
        """Whether to step in turns; brings the hidden state into that form."""
        halves = self._halves
        if halves is None or not self._choice.overlapped:
            return False
        if not halves.apart:
            try:
                halves.separate()
            except Exception:
                # Whatever an agent raises that cannot act for other numbers of rows: it acts for all of them.
                if self._must_overlap:
                    raise
                self._choice.settle(False)
                return False
        return True

    def _step_together(self, limits: Limits, sample: bool, begins: bool, stepped: Callable[[], None]) -> None:
        """Steps all actors at once while that is the way.

        Args:
            begins: let the agent begin with the next actions while environments are stepped and recorded.
        """
        lane = self._whole
        if self._halves is not None and self._halves.apart:
            self._halves.join()
        env = self.vector_env
        staged = env if begins and isinstance(env, SyncVectorEnv) and env.has_stages else None
        while True:
            actions = lane.act(sample, in_parts=staged is not None and limits.outlast(lane.num_rows))
            if staged is not None and lane.has_begun:
                step = staged.step_in_stages(actions, lane.release)
            else:
                step = self.vector_env.step(actions)
            lane.follow(step)
            if begins and self._choice.steps_left > 1 and limits.outlast(len(step.done_rows)):
                lane.begin(sample)
            self._take(lane, step, limits)
            stepped()
            if limits.reached() or self._failure is not None or self._choice.overlapped:
                return

    def _step_in_turns(self, limits: Limits, sample: bool, stepped: Callable[[], None]) -> None:
        """Steps one half while the agent acts for the other; at the end both have taken equally many steps."""
        halves = self._halves
        assert halves is not None
        second = halves.lanes[1]
        halves.send(0, sample)
        halves.send(1, sample)
        while True:
            self._arrive(0, limits)
            ahead = (
                self._choice.steps_left > 1
                and self._failure is None
                and not limits.next_may_be_last(second.rows)
            )
            if ahead:
                halves.send(0, sample)
            self._arrive(1, limits)
            stepped()
            if not ahead:
                if limits.reached() or self._failure is not None or not self._choice.overlapped:
                    return
                halves.send(0, sample)
            halves.send(1, sample)

    def _arrive(self, part: int, limits: Limits) -> None:
        """Waits for the step of a half."""
        halves = self._halves
        assert halves is not None
        lane, step = halves.lanes[part], halves.receive(part)
        lane.follow(step)
        self._take(lane, step, limits)

    def _take(self, lane: Lane, step: VectorStep, limits: Limits) -> None:
        """Counts and records a step; a write that failed is kept until all actors have taken equally many."""
        remaining = limits.remaining
        lane.count(step, None if remaining is None else remaining[lane.rows], self.stats)
        if self.recorder is None:
            return
        # Last, so that a write that failed has left nothing undone
        try:
            with self._gate:
                if lane is self._whole:
                    self.recorder.add(step)
                else:
                    self.recorder.add(step, lane.rows)
        except TrajectoryWriteError as error:
            self._failure = error
