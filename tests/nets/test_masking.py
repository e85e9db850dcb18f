"""Padding masks, and means that skip padding."""

import contextlib
import threading

import pytest
import torch

from amago.nets.masking import (
    MAGIC_PAD_VAL,
    current_timestep_mask,
    mask_from_filler,
    masked_avg,
    timestep_mask,
)


def test_a_timestep_is_padding_if_all_of_it_is_filler():
    x = torch.tensor([[[4.0, 4.0], [4.0, 1.0], [0.0, 0.0]]])
    assert mask_from_filler(x)[..., 0].tolist() == [[False, True, True]]
    assert MAGIC_PAD_VAL == 4.0


def test_masked_positions_do_not_count_whatever_they_hold():
    x = torch.tensor([[1.0, 3.0], [float("nan"), float("inf")]])
    mask = torch.tensor([[True], [False]])
    assert masked_avg(x, mask, dim=None).item() == pytest.approx(2.0, abs=1e-4)


def test_a_mean_over_nothing_is_zero():
    assert masked_avg(torch.ones(3), torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_mask_is_restored_when_its_context_exits():
    outer, inner = torch.ones(1, 2, 1, dtype=torch.bool), torch.zeros(1, 2, 1, dtype=torch.bool)
    assert current_timestep_mask() is None
    with timestep_mask(outer):
        with contextlib.suppress(RuntimeError), timestep_mask(inner):
            assert current_timestep_mask() is inner
            raise RuntimeError
        assert current_timestep_mask() is outer
    assert current_timestep_mask() is None


def test_a_mask_belongs_to_its_thread():
    ours, seen = torch.ones(1, 2, 1, dtype=torch.bool), []

    def act():
        seen.append(current_timestep_mask())
        with timestep_mask(torch.zeros(1, 1, 1, dtype=torch.bool)):
            entered.set()
            left.wait()

    entered, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=act)
    with timestep_mask(ours):
        thread.start()
        entered.wait()
        assert current_timestep_mask() is ours
        left.set()
        thread.join()
        assert current_timestep_mask() is ours
    assert seen == [None]


def test_a_compiled_function_is_compiled_again_for_masks_of_another_size():
    def total(x, mask):
        with timestep_mask(mask):
            return torch.where(current_timestep_mask(), x, 0.0).sum()

    compiled = torch.compile(total, backend="eager", fullgraph=True)
    totals = []

    def call():
        totals.extend(compiled(torch.ones(n), torch.ones(n, dtype=torch.bool)).item() for n in (2, 3, 4))

    thread = threading.Thread(target=call)  # one without a mask so far
    thread.start()
    thread.join()
    assert totals == [2.0, 3.0, 4.0]
