"""Trajectory encoders without attention: golden numbers, and steps that equal the whole sequence."""

import pytest
import torch

from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    TrajEncoder,
    get_traj_encoder_cls,
    list_registered_traj_encoders,
    register_traj_encoder,
)


def test_the_memoryless_encoder_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("ff_traj")
    encoder = FFTrajEncoder(**case.args["kwargs"])
    encoder.load_state_dict(case.state, strict=True)
    y, hidden_state = encoder(case.tensors["x"])
    assert hidden_state is None
    assert_forward(y.detach(), case.tensors["y"])


@torch.no_grad()
def test_the_recurrent_encoder_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("gru_traj")
    encoder = GRUTrajEncoder(**case.args["kwargs"])
    encoder.load_state_dict(case.state, strict=True)
    y, _ = encoder(case.tensors["x"])
    assert_forward(y, case.tensors["y"])
    hidden_state, steps = None, []
    for x in case.tensors["x"].unbind(1):
        out, hidden_state = encoder(x.unsqueeze(1), hidden_state=hidden_state)
        steps.append(out)
    assert_forward(torch.cat(steps, 1), case.tensors["ys"])


def make_encoders(tstep_dim):
    return [
        IdentityTrajEncoder(tstep_dim=tstep_dim, max_seq_len=4),
        FFTrajEncoder(tstep_dim=tstep_dim, max_seq_len=4, d_model=6, n_layers=2, norm="layer"),
        GRUTrajEncoder(tstep_dim=tstep_dim, max_seq_len=4, d_hidden=7, n_layers=3, d_output=5),
    ]


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_steps_equal_the_whole_sequence_for_every_episode(seed):
    """Rows end their episodes at different steps; each episode is then encoded alone, as a whole."""
    torch.manual_seed(seed)
    rows, length, dim = 4, 11, 3
    x = torch.randn(rows, length, dim)
    done = torch.rand(rows, length) < 0.25
    for encoder in make_encoders(dim):
        encoder.eval()
        hidden_state, steps = encoder.init_hidden_state(rows, torch.device("cpu")), []
        times = torch.zeros(rows, 1, 1, dtype=torch.int64)
        for t in range(length):
            out, hidden_state = encoder(x[:, t : t + 1], time_idxs=times, hidden_state=hidden_state)
            hidden_state = encoder.reset_hidden_state(hidden_state, done[:, t].numpy())
            times = torch.where(done[:, t, None, None], 0, times + 1)
            steps.append(out)
        stepwise = torch.cat(steps, 1)
        for row in range(rows):
            ends = [*(torch.nonzero(done[row]).flatten() + 1).tolist(), length]
            start = 0
            for end in ends:
                if end > start:
                    whole, _ = encoder(
                        x[row : row + 1, start:end], time_idxs=torch.arange(end - start).view(1, -1, 1)
                    )
                    torch.testing.assert_close(stepwise[row, start:end], whole[0], atol=1e-5, rtol=1e-4)
                start = end


def test_a_reset_for_another_number_of_rows_is_refused():
    encoder = GRUTrajEncoder(tstep_dim=3, max_seq_len=5, d_hidden=4)
    with pytest.raises(ValueError, match="each of 3 rows, got 2"):
        encoder.reset_hidden_state(torch.zeros(2, 3, 4), [True, False])


def test_a_user_encoder_only_needs_forward_and_a_width():
    class RunningMean(TrajEncoder):
        """The mean of all timesteps so far."""

        @property
        def emb_dim(self):
            return self.tstep_dim

        def forward(self, seq, time_idxs, hidden_state=None, log_dict=None):
            return seq.cumsum(1) / (time_idxs + 1), hidden_state

    register_traj_encoder("running-mean")(RunningMean)
    encoder = get_traj_encoder_cls("running-mean")(tstep_dim=2, max_seq_len=3)
    out, _ = encoder(torch.ones(1, 3, 2), time_idxs=torch.arange(3).view(1, 3, 1))
    torch.testing.assert_close(out, torch.ones(1, 3, 2))


def test_encoders_are_found_by_name():
    assert get_traj_encoder_cls("rnn") is GRUTrajEncoder
    assert {"identity", "ff", "rnn", "transformer"} <= set(list_registered_traj_encoders())
    with pytest.raises(
        ValueError, match=r"unknown trajectory encoder 'transfomer'.*Did you mean 'transformer'"
    ):
        get_traj_encoder_cls("transfomer")
    with pytest.raises(ValueError, match=r"'rnn' is already registered"):
        register_traj_encoder("rnn")(FFTrajEncoder)


@pytest.mark.parametrize(("tstep_dim", "max_seq_len", "name"), [(0, 4, "tstep_dim"), (3, 0, "max_seq_len")])
def test_sizes_must_be_positive(tstep_dim, max_seq_len, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        IdentityTrajEncoder(tstep_dim, max_seq_len)
