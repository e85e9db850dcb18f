"""Padding masks, and means that skip padding."""

import contextlib
import copy
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
from amago.nets.tstep_encoders import FFTstepEncoder


def test_a_timestep_is_padding_if_all_of_it_is_filler():
    x = torch.tensor([[[4.0, 4.0], [4.0, 1.0], [0.0, 0.0]]])
    assert mask_from_filler(x)[..., 0].tolist() == [[False, True, True]]
    assert MAGIC_PAD_VAL == 4.0


def test_masked_positions_do_not_count_whatever_they_hold():
    x = torch.tensor([[1.0, 3.0], [float("nan"), float("inf")]])
    mask = torch.tensor([[True], [False]])
    assert masked_avg(x, mask).item() == pytest.approx(2.0, abs=1e-4)


def test_masked_positions_get_no_gradient():
    x = torch.tensor([2.0, float("inf")], requires_grad=True)
    masked_avg(x.square(), torch.tensor([True, False])).backward()
    assert x.grad[0].item() == pytest.approx(4.0, abs=1e-3)


def test_a_mean_over_nothing_is_zero():
    assert masked_avg(torch.ones(3), torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_the_mask_is_known_within_its_context_only_even_if_it_is_left_by_an_error():
    outer, inner = torch.ones(1, 2, 1, dtype=torch.bool), torch.zeros(1, 2, 1, dtype=torch.bool)
    assert current_timestep_mask() is None
    with timestep_mask(outer):
        with contextlib.suppress(RuntimeError), timestep_mask(inner):
            assert current_timestep_mask() is inner
            raise RuntimeError
        assert current_timestep_mask() is outer
    assert current_timestep_mask() is None


def test_compilers_follow_an_encoder_and_its_mask_in_one_graph():
    torch.manual_seed(0)
    eager = FFTstepEncoder({"observation": (3,)}, (4,), d_hidden=8, d_output=6)
    compiled = copy.deepcopy(eager)
    traced = torch.compile(compiled, fullgraph=True, backend="eager")
    for steps in (2, 4):
        obs, rl2s = {"observation": torch.randn(2, 5, 3)}, torch.randn(2, 5, 4)
        with timestep_mask((torch.arange(5) < steps).view(1, 5, 1).expand(2, -1, -1)):
            torch.testing.assert_close(traced(obs, rl2s), eager(obs, rl2s))
        assert current_timestep_mask() is None
    torch.testing.assert_close(compiled.in_norm.mu, eager.in_norm.mu)


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
