"""Hidden states divided among groups of rows and joined again: rollouts go on as if they had not been."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from amago.nets.traj_encoders import hidden_row_axes, join_hidden_states, split_hidden_state

_spec = importlib.util.spec_from_file_location(
    "hidden_states", Path(__file__).with_name("test_hidden_states.py")
)
hidden_states: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hidden_states)
make_encoder, rollout, DIM = hidden_states.make_encoder, hidden_states.rollout, hidden_states.DIM
SIZES = [2, 3]
ROWS = sum(SIZES)


def axes_of(encoder: Any) -> list[int | None]:
    """Seen from one step of different numbers of rows."""
    return hidden_row_axes(
        {
            rows: rollout(encoder, torch.randn(rows, 1, DIM), encoder.init_hidden_state(rows, "cpu"))[1]
            for rows in (1, 2, ROWS)
        }
    )


@pytest.mark.parametrize("name", hidden_states.SIZES)
@pytest.mark.parametrize("steps_before", [0, 3, 7])  # 7: the Transformer's window is full
def test_rows_go_on_apart_and_together_as_they_would_have(name, steps_before):
    encoder = make_encoder(name)
    axes = axes_of(encoder)
    seq = torch.randn(ROWS, steps_before + 8, DIM)
    hidden_state = encoder.init_hidden_state(ROWS, "cpu")
    if steps_before:
        _, hidden_state = rollout(encoder, seq[:, :steps_before], hidden_state)
        hidden_state = encoder.reset_hidden_state(hidden_state, [False, True, False, True, False])
    groups = split_hidden_state(hidden_state, axes, SIZES)
    expected, _ = rollout(encoder, seq[:, steps_before:], hidden_state, steps_before)

    outputs = []
    for i, part in enumerate(seq.split(SIZES)):
        middle = part[:, steps_before : steps_before + 4]
        out, groups[i] = rollout(encoder, middle, groups[i], steps_before)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs), expected[:, :4], rtol=0, atol=1e-6)
    together, _ = rollout(
        encoder, seq[:, steps_before + 4 :], join_hidden_states(groups, axes), steps_before + 4
    )
    torch.testing.assert_close(together, expected[:, 4:], rtol=0, atol=1e-6)


def test_rows_are_found_along_whatever_axis_they_lie():
    def memory(rows: int) -> Any:
        return {"a": torch.zeros(rows, 3), "b": (torch.zeros(2, rows, 4), None, 7), "c": torch.zeros(5)}

    assert hidden_row_axes({1: memory(1), 2: memory(2)}) == [0, 1, None]


def test_a_window_as_long_as_there_are_rows_confuses_nothing():
    axes = hidden_row_axes({rows: torch.zeros(rows, 5) for rows in (1, 2)})
    first, rest = split_hidden_state(torch.arange(25.0).view(5, 5), axes, SIZES)
    assert (first.tolist(), rest.shape) == (torch.arange(10.0).view(2, 5).tolist(), (3, 5))


def test_groups_have_memory_of_their_own():
    hidden_state = torch.zeros(2, ROWS)
    first, _ = split_hidden_state(hidden_state, [1], SIZES)
    first += 1
    assert first.is_contiguous()
    assert hidden_state.sum() == 0


@pytest.mark.parametrize("hidden_state", [None, (None, 0)], ids=str)
def test_a_memory_that_has_not_begun_is_that_of_all(hidden_state):
    assert split_hidden_state(hidden_state, [0], SIZES) == [hidden_state] * 2
    assert join_hidden_states([hidden_state] * 2, [0]) == hidden_state


@pytest.mark.parametrize(
    ("of_rows", "message"),
    [
        (lambda rows: torch.zeros(8 * -(-rows // 8), 3), "as long as there are rows"),  # rounded up
        (lambda rows: torch.zeros(2 * rows, 3), "as long as there are rows"),
        (lambda rows: (torch.zeros(rows), rows), "plain numbers that depend on the rows"),
    ],
)
def test_what_depends_on_the_rows_in_another_way_is_refused(of_rows, message):
    with pytest.raises(ValueError, match=message):
        hidden_row_axes({rows: of_rows(rows) for rows in (1, 2, 12)})


def test_one_number_of_rows_shows_nothing():
    with pytest.raises(ValueError, match="at least two numbers of rows"):
        hidden_row_axes({3: torch.zeros(3)})


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (torch.zeros(1, 1), torch.zeros(2, 2), ValueError),
        ([torch.zeros(1)], [torch.zeros(1)] * 2, ValueError),
        (torch.zeros(1), torch.zeros(2, 1), ValueError),
        (object(), object(), TypeError),
    ],
)
def test_what_has_no_axis_of_rows_is_refused(one, other, error):
    with pytest.raises(error):
        hidden_row_axes({1: one, 2: other})


@pytest.mark.parametrize(
    "hidden_state", [torch.zeros(4, 3), [torch.zeros(5, 3)] * 2, torch.tensor(0.0), set()]
)
def test_a_hidden_state_of_other_rows_or_tensors_is_not_split(hidden_state):
    with pytest.raises((ValueError, TypeError)):
        split_hidden_state(hidden_state, [0], SIZES)
