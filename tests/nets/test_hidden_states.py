"""Hidden states of trajectory encoders, built in and user-defined: resets of single rows."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
    TrajEncoder,
    reset_rows,
)

ROWS, DIM, WINDOW = 3, 4, 5

SIZES: dict[str, tuple[type[TrajEncoder], dict[str, Any]]] = {
    "identity": (IdentityTrajEncoder, {}),
    "ff": (FFTrajEncoder, {"d_model": 8}),
    "rnn": (GRUTrajEncoder, {"d_hidden": 6, "n_layers": 2, "d_output": 8}),
    "transformer": (TformerTrajEncoder, {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 2}),
    "mamba": (MambaTrajEncoder, {"d_model": 8, "d_state": 4, "n_layers": 2}),
}


def make_encoder(name: str) -> TrajEncoder:
    cls, sizes = SIZES[name]
    torch.manual_seed(0)
    return cls(tstep_dim=DIM, max_seq_len=WINDOW, **sizes).eval()


def rollout(encoder: Any, seq: torch.Tensor, hidden_state: Any, start: int = 0) -> tuple[torch.Tensor, Any]:
    outputs = []
    with torch.inference_mode():
        for t, step in enumerate(seq.unbind(1), start):
            times = torch.full((len(seq), 1, 1), t)
            out, hidden_state = encoder(step.unsqueeze(1), time_idxs=times, hidden_state=hidden_state)
            outputs.append(out)
    return torch.cat(outputs, 1), hidden_state


class PairEncoder(TrajEncoder):
    """A user's encoder with the default reset: its hidden state is a nest of tensors, None and a number."""

    def __init__(self, tstep_dim: int, max_seq_len: int) -> None:
        super().__init__(tstep_dim, max_seq_len)
        self.cell = nn.LSTMCell(tstep_dim, tstep_dim)

    @property
    def emb_dim(self) -> int:
        return self.tstep_dim

    def forward(self, seq, time_idxs, hidden_state=None, log_dict=None):
        h, c = (None, None) if hidden_state is None else (hidden_state[0], hidden_state[1]["cell"])
        steps = 0 if hidden_state is None else hidden_state[3]
        outputs = []
        for step in seq.unbind(1):
            h, c = self.cell(step, None if h is None else (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), (h, {"cell": c}, None, steps + seq.shape[1])


SIZES["user"] = (PairEncoder, {})


@pytest.mark.parametrize("name", ["rnn", "transformer", "mamba", "user"])
def test_each_row_is_reset_alone(name):
    """Row 1 acts as in a new episode, the others as if nothing had happened."""
    encoder = make_encoder(name)
    seq = torch.randn(ROWS, 5, DIM)

    def reset_and_go_on(dones):
        _, hidden_state = rollout(encoder, seq[:, :3], encoder.init_hidden_state(ROWS, "cpu"))
        hidden_state = encoder.reset_hidden_state(hidden_state, dones)
        with torch.inference_mode():
            times = torch.tensor([0 if done else 3 for done in dones]).view(ROWS, 1, 1)
            return encoder(seq[:, 3:4], time_idxs=times, hidden_state=hidden_state)[0]

    fresh, _ = rollout(encoder, seq[:, 3:4], encoder.init_hidden_state(ROWS, "cpu"))
    undisturbed = reset_and_go_on([False] * ROWS)
    out = reset_and_go_on([False, True, False])
    torch.testing.assert_close(out[1], fresh[1])
    torch.testing.assert_close(out[[0, 2]], undisturbed[[0, 2]])


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("as_type", [list, torch.tensor], ids=["list", "tensor"])
def test_reset_rows_zeroes_every_tensor_of_a_nest(as_type):
    nest = {
        "pair": Pair(torch.ones(3, 2), [torch.ones(3)]),
        "rest": (None, 7, torch.ones(3, dtype=torch.int64)),
    }
    reset = reset_rows(nest, as_type([False, True, False]))
    assert isinstance(reset["pair"], Pair)
    assert reset["pair"].left.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert reset["pair"].right[0].tolist() == [1, 0, 1]
    assert reset["rest"][:2] == (None, 7)
    assert reset["rest"][2].tolist() == [1, 0, 1]
    assert nest["pair"].left.eq(1).all()  # a copy


def test_the_batch_lies_on_the_declared_axis():
    class SecondAxis(PairEncoder):
        hidden_batch_axis = 1

    reset = SecondAxis(DIM, WINDOW).reset_hidden_state(
        (torch.ones(2, 3), torch.ones(4, 3, 5)), [False, True, False]
    )
    assert reset[0].tolist() == [[1, 0, 1], [1, 0, 1]]
    assert reset[1].sum((0, 2)).tolist() == [20, 0, 20]


def test_hidden_states_of_another_form_are_refused():
    encoder = PairEncoder(DIM, WINDOW)
    with pytest.raises(ValueError, match="each of 2 rows, got 3"):
        encoder.reset_hidden_state(torch.ones(2, ROWS, DIM), [True, False, False])
    with pytest.raises(TypeError, match="got set; for others override reset_hidden_state"):
        encoder.reset_hidden_state({"a": {1, 2}}, [True])
