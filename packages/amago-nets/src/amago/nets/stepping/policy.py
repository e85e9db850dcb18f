"""Encoders and actor as one step program, kept up to date.

    policy = StepPolicy()
    begun = policy.begin((encoder, traj_encoder, actor), obs, rl2s, time_idxs, hidden_state, sample)
    ...  # other things to do while a helper thread may compute
    chosen = begun.finish()

Shapes: B rows, A width of the action representation, P parameters of the action distribution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amago.kernels.step_program import Run, StepProgram, wanted, why_not
from amago.nets.optimizer_steps import OPTIMIZER_STEPS
from amago.nets.stepping import encoders, heads, layers  # noqa: F401 - they register their translations
from amago.nets.stepping.builder import Builder, NotTranslatedError, forgets_as_ever
from amago.nets.stepping.heads import Ending
from amago.nets.stepping.memory import MemoryKind

Parts = tuple[Any, Any, Any]
"""Timestep encoder, trajectory encoder and actor."""


@dataclass(slots=True)
class _Made:
    """A program that was made, with what running it takes."""

    program: StepProgram
    inputs: list[tuple[str | None, int]] | None  # None: what the timestep encoder computes as a module
    memory: MemoryKind
    ending: Ending

    def can_be_in_parts(self, encoder: Any, hidden_state: Any) -> bool:
        """Whether rows may be given one after the other, and forgotten by the memory in the encoder's place.

        A module that computes inputs wants all rows at once.
        """
        return self.inputs is not None and forgets_as_ever(encoder) and self.memory.can_forget(hidden_state)


@dataclass(slots=True)
class _Given:
    """Inputs of a step that were looked at and found usable; rollouts give the same tensors at every step.

    Args:
        made: whose inputs they are.
        tensors: as they were given, in the order of `made.inputs`.
        converted: some of them were made for this step, which they are good for only.
    """

    made: _Made
    batch: int
    tensors: list[Tensor]
    widths: list[int]
    time_idxs: Tensor
    converted: bool

    def again(self, made: _Made, obs: Mapping[str, Tensor], rl2s: Tensor, time_idxs: Tensor) -> bool:
        """Whether a step is given these very tensors."""
        if made is not self.made or time_idxs is not self.time_idxs or self.converted:
            return False
        for (key, _), tensor in zip(made.inputs or (), self.tensors, strict=True):
            if (rl2s if key is None else obs[key]) is not tensor:
                return False
        return True

    def addresses(self) -> list[tuple[int, int]]:
        """Where the inputs lie now, and the distance between their rows."""
        return [(x.data_ptr(), width) for x, width in zip(self.tensors, self.widths, strict=True)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a step gave.

    Args:
        output: (B, 1, ·): indices int64, numbers in [-1, 1], or the distribution's parameters.
        is_action: whether it is the action; else the parameters of the last discount's distribution.
        hidden_state: after the step.
    """

    output: Tensor
    is_action: bool
    hidden_state: Any


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random numbers from torch's generator, and its states around them."""

    numbers: Tensor
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, draw: Callable[[int, int], Tensor], batch: int, width: int) -> _Draw:
        """`draw(batch, width)`, which can be undone."""
        before = torch.default_generator.get_state()
        return cls(draw(batch, width), before, torch.default_generator.get_state())

    def undo(self) -> None:
        """Puts the generator back, unless somebody has drawn from it or seeded it since."""
        if torch.equal(torch.default_generator.get_state(), self.after):
            torch.default_generator.set_state(self.before)


@dataclass(slots=True)
class BegunStep:
    """A timestep that was begun; no step is taken before `finish`.

    Rows that were released may have been written to, where the step itself writes; another step writes the same.
    """

    _run: Run | None  # None once it was dropped
    _policy: StepPolicy
    _chosen: Chosen
    _draw: _Draw | None
    _forget: Callable[[Any, slice, Tensor], None]
    _hidden_state_before: Any

    def release(self, rows: slice, starts: Tensor | None = None) -> bool:
        """Lets these rows be computed, of a timestep that was begun in parts; all rows before them were released.

        Args:
            rows: they hold the inputs that they are to be computed from.
            starts: (R,) those of them where an episode begins: the hidden state forgets them, in place. None if
                there are none.

        Returns:
            False if that cannot be; then the timestep was dropped.
        """
        if starts is not None:
            self._forget(self._hidden_state_before, rows, starts)
        if self._run is not None and self._run.release(rows.stop):
            return True
        self.drop()
        return False

    def drop(self) -> None:
        """Gives up, and the random numbers back; nothing happens after `finish`."""
        self._run = None
        if self._draw is not None:
            self._draw.undo()
            self._draw = None

    @property
    def hidden_state(self) -> Any:
        """The one after the step; not to be read before `finish`."""
        return self._chosen.hidden_state

    def finish(self) -> Chosen:
        """Waits for what the step gives.

        Raises:
            RuntimeError: if the policy's probabilities are not finite; or if the step was dropped.
        """
        if self._run is None:
            raise RuntimeError("the timestep cannot be finished: it was dropped")
        self._draw = None
        self._run.finish()
        self._policy.steps += 1
        return self._chosen


class StepPolicy:
    """Acts through a step program where there can be one, and says so where not.

    Copies and pickles of it are blank. What writes to `parameter.data` in place goes unnoticed, as torch does not
    count it.

    Attributes:
        steps: timesteps that a program has done.
        reason: why there is no program, None if there is one or none was needed yet.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.reason: str | None = None
        self._made: _Made | None = None
        self._watch: Any = None
        self._parts: tuple[Any, ...] = ()
        self._optimizer_steps = -1
        self._given: _Given | None = None
        self._one_at_a_time = threading.Lock()  # threads may act with one agent

    def __deepcopy__(self, memo: dict[int, Any]) -> StepPolicy:
        return StepPolicy()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepPolicy, ()

    def begin(
        self,
        parts: Parts,
        obs: Mapping[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any,
        sample: bool,
        in_parts: bool = False,
    ) -> BegunStep | None:
        """Begins one timestep of every row.

        Args:
            parts: of the agent, in that order.
            obs, rl2s, time_idxs, hidden_state, sample: as `get_actions` of agents takes them.
            in_parts: no row is computed before it is released; what is given may still change until then.

        Returns:
            None if the program cannot do it; `reason` says why where it lies in the networks. Until the step is
            finished, nobody may write to what was given.
        """
        if (
            not rl2s.is_cpu
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or not wanted()
        ):
            return None
        with self._one_at_a_time:
            made = self._up_to_date(parts)
        if made is None:
            return None
        taken = made.memory.take(rl2s.shape[0], hidden_state)
        if taken is None or (in_parts and not made.can_be_in_parts(parts[1], hidden_state)):
            return None
        memory, after = taken
        given = self._given
        if given is None or not given.again(made, obs, rl2s, time_idxs):
            given = self._given = _given(made, parts[0], obs, rl2s, time_idxs)
            if given is None:
                return None
        if in_parts and given.converted:
            return None
        batch, ending, program = given.batch, made.ending, made.program
        out = torch.empty(batch, 1, ending.width, dtype=ending.dtype)
        drawn = _Draw.of(ending.draw, batch, ending.width) if sample and ending.draw is not None else None
        noise = None if drawn is None else drawn.numbers
        begin = program.prepare if in_parts else program.begin
        run = begin(batch, given.addresses(), given.time_idxs, memory, noise, out, given.tensors)
        if run is None:
            if drawn is not None:
                drawn.undo()
            return None
        chosen = Chosen(out, ending.draw is not None, after)
        return BegunStep(run, self, chosen, drawn, made.memory.forget, hidden_state)

    def _up_to_date(self, parts: Parts) -> _Made | None:
        """The program with the present weights; None if there can be none."""
        same = self._watch is not None and all(a is b for a, b in zip(parts, self._parts, strict=True))
        if not same or not self._watch.same_structure():
            self._make(parts)
            return self._made
        changed = self._watch.weights_changed() or self._optimizer_steps != OPTIMIZER_STEPS.count
        if changed and self._made is None:
            self._make(parts)
        elif changed:
            self._refresh()
        return self._made

    def _make(self, parts: Parts) -> None:
        self._made = self._given = None
        reasons = why_not()
        if reasons:
            self.reason = "; ".join(reasons)
            return
        OPTIMIZER_STEPS.start()
        self._parts = parts
        try:
            builder, x, inputs = self._translate_inputs(parts[0])
            x, memory = builder.translate(parts[1], x)
            ending = builder.translate(parts[2], x)
        except NotTranslatedError as error:
            self.reason = str(error)
            self._watch.weights_changed()
            self._optimizer_steps = OPTIMIZER_STEPS.count
            return
        builder.program.build()
        self._made = _Made(builder.program, inputs, memory, ending)
        self._watch.weights_changed()
        self._refresh()

    def _translate_inputs(self, encoder: Any) -> tuple[Builder, int, list[tuple[str | None, int]] | None]:
        """The timestep encoder's output; where it has no translation, room for what the module computes."""
        builder = Builder()
        self._watch = builder.watch
        builder.no_global_hooks()
        try:
            return builder, *builder.translate(encoder)
        except NotTranslatedError:
            builder = Builder()
            self._watch = builder.watch
            builder.no_global_hooks()
            return builder, builder.program.gather([(0, encoder.emb_dim, 0)]), None

    def _refresh(self) -> None:
        assert self._made is not None
        self._optimizer_steps = OPTIMIZER_STEPS.count
        try:
            self._made.program.refresh()
            self.reason = None
        except NotTranslatedError as error:
            self._made, self.reason = None, str(error)


def _given(
    made: _Made, encoder: Any, obs: Mapping[str, Tensor], rl2s: Tensor, time_idxs: Tensor
) -> _Given | None:
    """The inputs of a step; None if they are none for a program."""
    if rl2s.dim() != 3 or rl2s.shape[1] != 1 or rl2s.dtype != torch.float32:
        return None
    batch = rl2s.shape[0]
    if time_idxs.dtype != torch.int64 or time_idxs.numel() != batch or time_idxs.device.type != "cpu":
        return None
    if made.inputs is None:
        with torch.no_grad():
            embedded: Tensor = encoder(obs=obs, rl2s=rl2s)
        if embedded.shape != (batch, 1, encoder.emb_dim) or embedded.dtype != torch.float32:
            return None
        tensors, widths = [embedded.contiguous()], [encoder.emb_dim]
        return _Given(made, batch, tensors, widths, time_idxs.contiguous(), converted=True)
    tensors, converted = [], not time_idxs.is_contiguous()
    for key, width in made.inputs:
        x = rl2s if key is None else obs[key]
        if x.numel() != batch * width or x.shape[0] != batch or x.device.type != "cpu" or x.shape[1] != 1:
            return None
        if x.dtype != torch.float32 or not x.is_contiguous():
            x, converted = x.to(torch.float32).contiguous(), True
        tensors.append(x)
    widths = [width for _, width in made.inputs]
    return _Given(made, batch, tensors, widths, time_idxs.contiguous(), converted)
