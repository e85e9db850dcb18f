"""A lane: rows of a vector environment that the agent acts for at once, with all that is kept of them.

Rollouts have one of all rows, and two more where they step one half of the environments while the agent acts for
the other.

Shapes: N rows of the lane.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from amago.agent import BaseAgent
from amago.agent.acting import BegunActions
from amago.envs.metrics import EpisodeStats, StepCounts
from amago.envs.vector import PolicyInput, VectorEnv, VectorStep
from amago.experiment.episodes import RunningEpisodes

_UNCHANGED = contextlib.nullcontext()


class Lane:
    """Acts on the inputs of its rows, follows their steps and counts them.

    Args:
        agent: acts.
        vector_env: where the rows are.
        device: of the agent.
        autocast: act in bf16 where torch deems it safe.
        rows: which ones.
        running: the episodes of these rows.
        steps_by_env_name: what steps are counted into.

    Attributes:
        inputs: what the agent acts on next; None before the first reset.
        hidden_state: what it remembers.
    """

    def __init__(
        self,
        agent: BaseAgent,
        vector_env: VectorEnv,
        *,
        device: torch.device,
        autocast: bool,
        rows: slice,
        running: RunningEpisodes,
        steps_by_env_name: dict[str, int],
    ) -> None:
        self.agent = agent
        self.rows = rows
        self.num_rows = rows.stop - rows.start
        self.inputs: PolicyInput | None = None
        self.hidden_state: Any = None
        self._vector_env = vector_env
        self._device = device
        self._autocast = autocast
        self._running = running
        self._counts = StepCounts(steps_by_env_name)
        self._viewed: PolicyInput | None = None
        self._tensors: tuple[dict[str, Tensor], Tensor, Tensor] | None = None
        self._begun: BegunActions | None = None
        # An agent that cannot begin is not asked at every step
        self._may_begin, self._may_begin_in_parts = True, True

    def blank_hidden_state(self, num_rows: int | None = None) -> Any:
        """The hidden state at the start of episodes, of its own number of rows unless another is given."""
        return self.agent.init_hidden_state(self.num_rows if num_rows is None else num_rows, self._device)

    def act(self, sample: bool, in_parts: bool = False) -> npt.NDArray[Any]:
        """The agent's actions, (N, ...) as the vector environment takes them.

        Args:
            sample: draw them from the policy.
            in_parts: let the agent begin with the next ones too, if it can, row by row as `release` is called.

        Raises:
            ValueError: an observation is not finite, and so no action could be drawn or the action is neither.
        """
        inputs = self.inputs
        assert inputs is not None
        begun, self._begun = self._begun, None
        following = None
        try:
            if begun is None:
                actions, self.hidden_state = self._ask_agent(*self._views(inputs), self.hidden_state, sample)
                if in_parts:
                    following = self._begin_in_parts(self.hidden_state, sample)
            else:
                if in_parts:  # while a helper thread computes the present ones
                    following = self._begin_in_parts(begun.hidden_state, sample)
                with torch.inference_mode():
                    actions, self.hidden_state = begun.finish()
        except BaseException as error:
            if following is not None:
                following.drop()
            problem = self._nonfinite(inputs) if isinstance(error, RuntimeError | ValueError) else None
            if problem is not None:
                raise ValueError(problem) from error
            raise
        array: npt.NDArray[Any] = (actions if actions.device.type == "cpu" else actions.cpu()).numpy()
        array = array.reshape(len(array), *array.shape[2:])
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                self._nonfinite(inputs) or "the agent's actions are not finite: its weights are not"
            )
        self._begun = following
        return array

    @property
    def has_begun(self) -> bool:
        """Whether the agent has begun with the next actions."""
        return self._begun is not None

    def begin(self, sample: bool) -> None:
        """Lets the agent begin with the next actions, if it can, for `act` to finish.

        Until then the inputs and the hidden state must stay as they are, or `drop_begun` be called.
        """
        if self._begun is None and self._may_begin:
            self._begun = self._ask_to_begin(self.hidden_state, sample, in_parts=False)
            self._may_begin = self._begun is not None

    def _begin_in_parts(self, hidden_state: Any, sample: bool) -> BegunActions | None:
        begun = None
        if self._may_begin_in_parts:
            begun = self._ask_to_begin(hidden_state, sample, in_parts=True)
            self._may_begin_in_parts = begun is not None
        return begun

    def release(self, rows: slice, starts: npt.NDArray[np.bool_] | None) -> None:
        """During a step: these rows, and all before them, hold what the agent acts on next.

        Args:
            rows: which ones.
            starts: (R,) those where that begins an episode; None if there are none.
        """
        begun = self._begun
        if begun is None:
            return
        if starts is None:
            released = begun.release(rows)
        else:
            with torch.inference_mode():
                released = begun.release(rows, torch.from_numpy(starts))
        if not released:
            self._begun = None

    def _ask_to_begin(self, hidden_state: Any, sample: bool, *, in_parts: bool) -> BegunActions | None:
        if self._autocast or self._device.type != "cpu":
            return None
        assert self.inputs is not None
        obs, rl2s, time_idxs = self._views(self.inputs)
        try:
            with torch.inference_mode():
                return self.agent.begin_actions(
                    obs, rl2s, time_idxs, hidden_state, sample=sample, in_parts=in_parts
                )
        except Exception:
            # The step is still to be recorded. Whatever this is, it comes again in `act`, which tells the cause.
            return None

    def drop_begun(self) -> None:
        """Gives up what was begun; an agent that could not begin is asked again."""
        if self._begun is not None:
            self._begun.drop()
        self._begun = None
        self._may_begin = self._may_begin_in_parts = True

    def first_hidden_state(self, num_rows: int) -> Any:
        """The hidden state after the first step of `num_rows` episodes, which are not those that are acted in."""
        assert self.inputs is not None
        obs, rl2s, time_idxs = self._views(self.inputs)
        obs = {key: value[:num_rows].clone() for key, value in obs.items()}
        rest = rl2s[:num_rows].clone(), time_idxs[:num_rows].clone()
        return self._ask_agent(obs, *rest, self.blank_hidden_state(num_rows), False)[1]

    def _views(self, inputs: PolicyInput) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Observations, rl2s and time indices as sequences of length one, (N, 1, ...).

        They are views of the arrays, which vector environments use again for every step. They are kept, because
        every torch call lets go of the interpreter, and the thread that writes files may take it.
        """
        if self._tensors is None or self._viewed is not inputs:
            self._viewed = inputs
            self._tensors = (
                {key: torch.from_numpy(value).unsqueeze(1) for key, value in inputs.obs.items()},
                torch.from_numpy(inputs.rl2s).unsqueeze(1),
                torch.from_numpy(inputs.time_idxs).view(-1, 1, 1),
            )
        return self._tensors

    def _ask_agent(
        self, obs: dict[str, Tensor], rl2s: Tensor, time_idxs: Tensor, hidden_state: Any, sample: bool
    ) -> tuple[Tensor, Any]:
        """The agent's actions (N, 1, ...) and its next hidden state."""
        if self._device.type != "cpu":
            obs = {key: value.to(self._device, non_blocking=True) for key, value in obs.items()}
            rl2s = rl2s.to(self._device, non_blocking=True)
            time_idxs = time_idxs.to(self._device, non_blocking=True)
        with torch.inference_mode(), self._precision():
            return self.agent.get_actions(
                obs=obs, rl2s=rl2s, time_idxs=time_idxs, hidden_state=hidden_state, sample=sample
            )

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast as it was asked for; entering it takes as long as a small layer, so only where it differs."""
        if not self._autocast and not torch.is_autocast_enabled(self._device.type):
            return _UNCHANGED
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def _nonfinite(self, inputs: PolicyInput) -> str | None:
        """Which observation that the agent saw is NaN or infinite, if one is."""
        for key, rows in inputs.obs.items():
            finite = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
            if not finite.all():
                row = int(np.argmin(finite))
                number = self.rows.start + row
                name = self._vector_env.env_names[number]
                return (
                    f"observation {key!r} of environment {number} ({name!r}) is not finite: {rows[row]}; correct "
                    "what the environment returns"
                )
        return None

    def follow(self, step: VectorStep) -> None:
        """Takes the inputs after a step, and forgets the rows whose episode ended."""
        self.inputs = step.inputs
        if self._begun is not None:  # in parts, so that `release` has made the hidden state forget them
            return
        if step.done_rows.size or step.reset_rows.size:
            dones = step.terminated | step.truncated
            dones[step.reset_rows] = True
            with torch.inference_mode():
                self.hidden_state = self.agent.reset_hidden_state(self.hidden_state, dones)

    def count(self, step: VectorStep, remaining: npt.NDArray[np.int64] | None, stats: EpisodeStats) -> None:
        """Adds a step to running episodes and frame counts, and finished episodes to the statistics.

        Args:
            remaining: (N,) episodes that each row still contributes; lowered. None for no limit.
            stats: receives those that finish.
        """
        self._counts.add(step.env_names)
        self._running.add(step)
        for row in step.reset_rows.tolist():
            self._counts.take_back(step.env_names[row])
            self._running.clear_row(row)
        for row in step.done_rows.tolist():
            if remaining is None or remaining[row] > 0:
                self._running.finish(row, step.env_names[row], stats)
            if remaining is not None and remaining[row] > 0:
                remaining[row] -= 1
            self._running.clear_row(row)

    def settle_counts(self) -> None:
        """Brings the steps by name up to date."""
        self._counts.settle()
