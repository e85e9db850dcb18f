"""Runs of a step program: in parts or at once, with helper threads or without, one computes what the other does.

Shapes: B rows.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from amago.kernels.step_program import Memory, StepProgram

WIDTH, HEADS, DIM, SLOTS, ENTRIES = 24, 2, 4, 5, 64


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads may take part; programs with more than one try both ways in turn, in blocks of steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Steps:
    """A program of layers, attention, a recurrent state and positions, and what a step of it takes."""

    def __init__(self, batch: int) -> None:
        generator = torch.Generator().manual_seed(batch)
        self.batch = batch
        self.weight = torch.randn(3 * HEADS * DIM, WIDTH, generator=generator) / 5
        self.table = torch.randn(ENTRIES, WIDTH, generator=generator)
        self.program = StepProgram()
        x = self.program.gather([(0, WIDTH, 0)])
        self.program.add_position(x, lambda count: self.table[:count], limit=ENTRIES)
        qkv = self.program.linear(x, 3 * HEADS * DIM, lambda: (self.weight, None))
        self.program.emit(self.program.attend(qkv, 0, HEADS, DIM))
        self.program.build()
        self.program.refresh()
        self.inputs = torch.randn(batch, WIDTH, generator=generator)
        self.positions = torch.arange(batch) % 7
        self.memory = self.fresh_memory()

    def fresh_memory(self) -> Memory:
        keys, values = torch.zeros(2, 1, self.batch, SLOTS, HEADS, DIM)
        return Memory(keys=keys, values=values, lengths=torch.zeros(self.batch, dtype=torch.int64))

    def prepare(self, memory: Memory | None = None):
        """A run, and where it puts its results."""
        out = torch.full((self.batch, HEADS * DIM), torch.nan)
        given = [(self.inputs.data_ptr(), WIDTH)], self.positions, memory or self.memory, None, out
        return self.program.prepare(self.batch, *given, keep=self.inputs), out

    def expected(self) -> torch.Tensor:
        """Of the first step."""
        qkv = F.linear(self.inputs + self.table[self.positions], self.weight)
        return qkv[:, 2 * HEADS * DIM :]  # one step remembers nothing but itself

    def prepare_and_run(self) -> torch.Tensor:
        """What a first step gives."""
        run, out = self.prepare(self.fresh_memory())
        run.release(self.batch)
        run.finish()
        return out

    def step(self, *parts: int) -> torch.Tensor:
        """What a step gives whose rows are released up to `parts`, one after the other."""
        run, out = self.prepare()
        for rows in parts:
            assert run.release(rows)
        run.finish()
        return out


@pytest.mark.parametrize("batch", [1, 5, 12, 13, 100, 300])
def test_parts_give_what_all_rows_at_once_give(batch, threads):
    at_once, in_parts = Steps(batch), Steps(batch)
    torch.testing.assert_close(Steps(batch).step(batch), at_once.expected(), atol=1e-5, rtol=1e-5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        ends = torch.randint(0, batch + 1, (3,), generator=generator).sort().values.tolist()
        assert torch.equal(in_parts.step(*ends, batch), at_once.step(batch))
    for left, right in zip((at_once.memory, in_parts.memory), (in_parts.memory, at_once.memory), strict=True):
        assert left.lengths.tolist() == [150] * batch
        assert torch.equal(left.keys, right.keys)
        assert torch.equal(left.values, right.values)


def test_rows_may_be_written_until_they_are_released(threads):
    steps = Steps(24)
    expected = steps.expected()
    inputs, positions = steps.inputs.clone(), steps.positions.clone()
    for _ in range(100):
        steps.memory = steps.fresh_memory()
        steps.inputs.fill_(torch.nan)
        steps.positions.fill_(-1)
        steps.memory.lengths.fill_(-5)
        run, out = steps.prepare()
        for first in (0, 8, 16):
            part = slice(first, first + 8)
            steps.inputs[part], steps.positions[part], steps.memory.lengths[part] = (
                inputs[part],
                positions[part],
                0,
            )
            assert run.release(part.stop)
        run.finish()
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_a_run_that_is_dropped_takes_no_step(threads):
    steps, undisturbed = Steps(24), Steps(24)
    for released in [(), (6,), (6, 12), (24,)] * 20:
        run, _ = steps.prepare()
        for rows in released:
            run.release(rows)
        del run
        assert torch.equal(steps.step(12, 24), undisturbed.step(24))
    assert torch.equal(steps.memory.lengths, undisturbed.memory.lengths)


def test_a_run_is_counted_once(threads):
    steps = Steps(12)
    run, _ = steps.prepare()
    run.release(12)
    run.finish()
    run.finish()
    assert steps.memory.lengths.tolist() == [1] * 12


def test_a_run_waits_for_all_of_its_rows(threads):
    steps = Steps(12)
    run, _ = steps.prepare()
    for rows in (0, 11):
        run.release(rows)
        with pytest.raises(RuntimeError, match="not all of its rows were released"):
            run.finish()
    assert steps.memory.lengths.tolist() == [0] * 12
    run.release(12)
    run.finish()


def test_what_begins_meanwhile_takes_the_place_of_a_run_with_rows_to_come(threads):
    steps = Steps(24)
    for _ in range(50):
        early, _ = steps.prepare()
        assert early.release(12)
        other, out = steps.prepare(steps.fresh_memory())
        assert other.release(24)
        assert not early.release(24)
        assert early.beyond is None
        other.finish()
        torch.testing.assert_close(out, steps.expected(), atol=1e-5, rtol=1e-5)
        with pytest.raises(RuntimeError, match="not all of its rows were released"):
            early.finish()
    assert steps.memory.lengths.tolist() == [0] * 24


def test_a_run_with_all_of_its_rows_is_done_before_others_and_before_weights_change(threads):
    steps = Steps(24)
    for _ in range(50):
        expected, memories = steps.expected(), [steps.fresh_memory() for _ in range(2)]
        first, out = steps.prepare(memories[0])
        assert first.release(24)
        second, second_out = steps.prepare(memories[1])
        steps.weight += 0.01
        steps.program.refresh()
        assert second.release(24)
        second.finish()
        first.finish()
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(second_out, steps.expected(), atol=1e-5, rtol=1e-5)
        assert [memory.lengths.tolist() for memory in memories] == [[1] * 24] * 2


def test_a_part_without_an_entry_for_its_position_is_not_released(threads):
    steps = Steps(12)
    steps.positions[9] = ENTRIES + 3
    run, _ = steps.prepare()
    assert run.release(6)
    assert not run.release(12)
    assert run.beyond == ENTRIES + 3
    steps.positions[9] = -1
    assert not run.release(12)
    steps.positions[9] = 0
    assert run.release(12)  # nothing was done, so it goes on
    run.finish()


def test_rows_are_released_in_order_and_not_beyond_the_last(threads):
    steps = Steps(24)
    run, out = steps.prepare()
    assert run.release(12)
    for rows in (6, 25, 4000, -1):
        with pytest.raises(ValueError, match=rf"rows is {rows}: rows are released in order"):
            run.release(rows)
    assert run.release(24)
    run.finish()
    torch.testing.assert_close(out, steps.expected(), atol=1e-5, rtol=1e-5)


def test_learned_tables_are_copied_like_other_weights(threads):
    steps = Steps(24)
    expected = steps.expected()
    run, out = steps.prepare()
    assert run.release(12)
    steps.table += 1.0
    assert run.release(24)
    run.finish()
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    steps.program.refresh()
    steps.memory = steps.fresh_memory()
    torch.testing.assert_close(steps.step(24), steps.expected(), atol=1e-5, rtol=1e-5)


def test_a_run_keeps_all_that_it_reads(threads):
    steps = Steps(24)
    expected = steps.expected()
    run, out = steps.prepare()
    steps.program._fill_tables(ENTRIES)  # other tables than when it was prepared
    del steps
    gc.collect()
    torch.full((ENTRIES * 2, WIDTH), -7.0)  # takes memory that was let go
    assert run.release(24)
    run.finish()
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_helpers_that_went_to_sleep_are_called(threads):
    steps, undisturbed = Steps(100), Steps(100)
    for i in range(60):
        if i % 20 == 0:
            time.sleep(0.02)
        assert torch.equal(steps.step(50, 100), undisturbed.step(100))


def test_threads_of_python_may_prepare_finish_and_drop_runs_of_one_program(threads):
    steps = Steps(36)
    expected, wrong = steps.expected(), []

    def act(parts: tuple[int, ...]) -> None:
        for i in range(200):
            memory = steps.fresh_memory()
            run, out = steps.prepare(memory)
            released = [run.release(rows) for rows in parts]
            if all(released) and i % 3:
                run.finish()
                if not torch.allclose(out, expected, atol=1e-5) or memory.lengths.tolist() != [1] * 36:
                    wrong.append(out)

    together = [threading.Thread(target=act, args=(parts,)) for parts in ((36,), (12, 36), (6, 20, 36))]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_goes_on_without_the_helpers(threads):
    steps, undisturbed = Steps(100), Steps(100)
    for _ in range(70):
        steps.step(100)
        undisturbed.step(100)
    run, out = steps.prepare()
    run.release(50)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run.release(100)
            run.finish()
            right = torch.equal(out, undisturbed.step(100))
            right = right and all(torch.equal(steps.step(40, 100), undisturbed.step(100)) for _ in range(70))
            code = 0 if right else 2
            del run, steps, undisturbed
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.release(100)
    run.finish()
    assert torch.equal(out, undisturbed.step(100))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_another_thread_runs_the_program_can_drop_and_run(threads):
    steps, over = Steps(300), False
    expected = steps.expected()  # not in the child, as torch's own threads do not survive a fork

    def act() -> None:
        while not over:
            steps.prepare_and_run()

    other = threading.Thread(target=act)
    other.start()
    try:
        for _ in range(20):
            prepared, _ = steps.prepare(steps.fresh_memory())
            begun, _ = steps.prepare(steps.fresh_memory())
            begun.release(100)
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)  # ends it, should it hang
                del prepared, begun
                right = torch.allclose(steps.prepare_and_run(), expected, atol=1e-5)
                os._exit(0 if right else 2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over = True
        other.join()


def test_a_program_that_goes_takes_its_helpers_along(threads):
    before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None
    for _ in range(10):
        steps = Steps(100)
        for _ in range(40):
            steps.step(50, 100)
        run, _ = steps.prepare()
        run.release(50)
        del steps  # the run holds the program
        del run
    gc.collect()
    if before is not None:
        assert len(os.listdir("/proc/self/task")) <= before
