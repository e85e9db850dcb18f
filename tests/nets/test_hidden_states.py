"""Hidden states of every trajectory encoder, also of ones that users write: moved, saved, restored, reset."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
    TrajEncoder,
    hidden_state_dict,
    load_hidden_state,
    map_hidden_state,
    move_hidden_state,
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
    """A user's encoder that knows nothing of saving: its memory is a tuple with a dict and None in it."""

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


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("steps_before", [0, 3, 7])  # 7: the Transformer's window is full
def test_a_restored_rollout_goes_on_bit_for_bit(name, steps_before, tmp_path):
    encoder = make_encoder(name)
    seq = torch.randn(ROWS, steps_before + 4, DIM)
    hidden_state = encoder.init_hidden_state(ROWS, "cpu")
    if steps_before:
        _, hidden_state = rollout(encoder, seq[:, :steps_before], hidden_state)
        hidden_state = encoder.reset_hidden_state(hidden_state, [False, True, False])
    save_file(hidden_state_dict(hidden_state), tmp_path / "memory.safetensors")
    expected, _ = rollout(encoder, seq[:, steps_before:], hidden_state, steps_before)

    tensors = load_file(tmp_path / "memory.safetensors")
    restored = load_hidden_state(tensors, like=encoder.init_hidden_state(ROWS, "cpu"))
    actual, _ = rollout(encoder, seq[:, steps_before:], restored, steps_before)
    assert torch.equal(actual, expected)


def test_another_process_goes_on_bit_for_bit(tmp_path):
    seq = torch.randn(ROWS, 9, DIM)
    for name in ("rnn", "transformer", "mamba"):
        encoder = make_encoder(name)
        _, hidden_state = rollout(encoder, seq[:, :6], encoder.init_hidden_state(ROWS, "cpu"))
        save_file(hidden_state_dict(hidden_state), tmp_path / f"{name}.memory")
        save_file(encoder.state_dict(), tmp_path / f"{name}.weights")
        expected, _ = rollout(encoder, seq[:, 6:], hidden_state, 6)
        save_file({"seq": seq[:, 6:].contiguous(), "expected": expected}, tmp_path / f"{name}.case")
    code = f"""
import sys
import torch
from safetensors.torch import load_file
from amago.nets.traj_encoders import get_traj_encoder_cls, load_hidden_state

for name, sizes in {[(name, SIZES[name][1]) for name in ("rnn", "transformer", "mamba")]!r}:
    encoder = get_traj_encoder_cls(name)(tstep_dim={DIM}, max_seq_len={WINDOW}, **sizes).eval()
    encoder.load_state_dict(load_file(sys.argv[1] + f"/{{name}}.weights"))
    case = load_file(sys.argv[1] + f"/{{name}}.case")
    tensors = load_file(sys.argv[1] + f"/{{name}}.memory")
    memory = load_hidden_state(tensors, like=encoder.init_hidden_state({ROWS}, "cpu"))
    for t, step in enumerate(case["seq"].unbind(1)):
        with torch.inference_mode():
            times = torch.full(({ROWS}, 1, 1), 6 + t)
            out, memory = encoder(step.unsqueeze(1), time_idxs=times, hidden_state=memory)
        assert torch.equal(out[:, 0], case["expected"][:, t]), name
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)


@pytest.mark.parametrize("name", SIZES)
def test_what_was_saved_does_not_change_with_later_steps(name):
    """A Transformer's cache is written in place."""
    encoder = make_encoder(name)
    seq = torch.randn(ROWS, 4, DIM)
    _, hidden_state = rollout(encoder, seq[:, :2], encoder.init_hidden_state(ROWS, "cpu"))
    saved = hidden_state_dict(hidden_state)
    copies = {key: tensor.clone() for key, tensor in saved.items()}
    rollout(encoder, seq[:, 2:], hidden_state, 2)
    restored = load_hidden_state(saved, like=encoder.init_hidden_state(ROWS, "cpu"))
    rollout(encoder, seq[:, 2:], restored, 2)
    for key, tensor in saved.items():
        assert torch.equal(tensor, copies[key]), key


@pytest.mark.parametrize("name", SIZES)
def test_hidden_states_move_and_keep_their_dtypes(name):
    encoder = make_encoder(name)
    _, hidden_state = rollout(encoder, torch.randn(ROWS, 2, DIM), encoder.init_hidden_state(ROWS, "cpu"))
    there = move_hidden_state(hidden_state, "meta")
    assert type(there) is type(hidden_state)
    devices, dtypes, before = [], [], []
    map_hidden_state(lambda x: devices.append(x.device.type) or dtypes.append(x.dtype) or x, there)
    map_hidden_state(lambda x: before.append(x.dtype) or x, hidden_state)
    assert set(devices) <= {"meta"}
    assert dtypes == before


@pytest.mark.parametrize("name", ["rnn", "transformer", "mamba", "user"])
def test_each_row_is_reset_alone(name):
    """Row 1 then behaves as if its episode began now, the others as if nothing had happened."""
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


@dataclass(frozen=True)
class Memory:
    tensor: torch.Tensor
    count: int = 0


class Holder:
    """A class of a user's own, with the two methods."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def hidden_tensors(self) -> dict[str, Any]:
        return {"content": self.content}

    def with_hidden_tensors(self, tensors: dict[str, Any]) -> "Holder":
        return Holder(**tensors)


def nest(value: float) -> Any:
    """One of everything."""
    x = torch.full((2, 3), value)
    return {
        "objects": [Pair(x, Memory(x + 1, 4)), Holder((x + 2,))],
        "numbers": (True, 3, 0.1, None),
        "empty": [(), [], {}],
        "integers": torch.tensor([1, 2]),
        "transposed": x.T,
    }


def as_plain(hidden_state: Any) -> str:
    """Types and values of everything in it."""
    if isinstance(hidden_state, torch.Tensor):
        return f"{hidden_state.dtype}{hidden_state.tolist()}"
    if isinstance(hidden_state, Holder):
        return f"Holder({as_plain(hidden_state.content)})"
    if isinstance(hidden_state, Memory):
        return f"Memory({as_plain(hidden_state.tensor)}, {hidden_state.count})"
    if isinstance(hidden_state, dict):
        return str({key: as_plain(part) for key, part in sorted(hidden_state.items())})
    if isinstance(hidden_state, list | tuple):
        return f"{type(hidden_state).__name__}{[as_plain(part) for part in hidden_state]}"
    return repr(hidden_state)


def test_nests_of_any_kind_come_back_as_they_were(tmp_path):
    save_file(hidden_state_dict(nest(7.0)), tmp_path / "nest")
    restored = load_hidden_state(load_file(tmp_path / "nest"), like=nest(0.0))
    assert as_plain(restored) == as_plain(nest(7.0))


@pytest.mark.parametrize(
    "hidden_state", [None, torch.ones(2), (torch.ones(2), [torch.zeros(1)]), {"a": {"b": torch.ones(1)}}, 3]
)
def test_plain_nests_need_no_example(hidden_state):
    assert as_plain(load_hidden_state(hidden_state_dict(hidden_state))) == as_plain(hidden_state)


def test_an_object_needs_an_example_of_its_class():
    tensors = hidden_state_dict(Memory(torch.ones(2)))
    with pytest.raises(ValueError, match=r"give like=encoder.init_hidden_state\(rows, device\)"):
        load_hidden_state(tensors)


def test_another_number_of_rows_or_layers_or_another_encoder_is_named():
    encoder = make_encoder("mamba")
    tensors = hidden_state_dict(encoder.init_hidden_state(ROWS, "cpu"))
    with pytest.raises(
        ValueError, match=r"\.conv/\(0\) is torch.float32 \(3, 3, 16\), expected .* \(2, 3, 16\)"
    ):
        load_hidden_state(tensors, like=encoder.init_hidden_state(2, "cpu"))
    deeper = MambaTrajEncoder(DIM, WINDOW, d_model=8, d_state=4, n_layers=3)
    with pytest.raises(ValueError, match=r"\.conv has the parts .*number of layers"):
        load_hidden_state(tensors, like=deeper.init_hidden_state(ROWS, "cpu"))
    with pytest.raises(ValueError, match=r"\['\.conv', '\.ssm'\], expected \['\.key_cache'.*another kind"):
        load_hidden_state(tensors, like=make_encoder("transformer").init_hidden_state(ROWS, "cpu"))
    with pytest.raises(ValueError, match="is a tensor, expected MambaHiddenState"):
        load_hidden_state({"=tensor": torch.ones(1)}, like=encoder.init_hidden_state(ROWS, "cpu"))


def test_names_that_we_did_not_give_are_refused():
    with pytest.raises(ValueError, match="no names that hidden_state_dict gives"):
        load_hidden_state({"(0)": torch.ones(1), "(2)": torch.ones(1)})


def test_what_cannot_be_saved_is_named():
    with pytest.raises(TypeError, match=r"got set; give the class the methods hidden_tensors\(\)"):
        hidden_state_dict({"a": {1, 2}})
    with pytest.raises(TypeError, match=r"keys of a hidden state must be names .* got 'a/b'"):
        hidden_state_dict({"a/b": torch.ones(1)})


def test_rows_lie_along_the_axis_that_is_given():
    state = (torch.ones(2, 3), {"x": torch.ones(4, 3, 5)})
    reset = reset_rows(state, [False, True, False], batch_dim=1)
    for tensor in (reset[0].T, reset[1]["x"].transpose(0, 1)):
        assert tensor.flatten(1).sum(1).gt(0).tolist() == [True, False, True]
    assert torch.equal(state[0], torch.ones(2, 3))  # not changed


def test_a_memory_that_cannot_be_reset_by_default_says_what_to_override():
    encoder = PairEncoder(DIM, WINDOW)
    with pytest.raises(ValueError, match=r"each of 2 rows, got 3; override PairEncoder\.reset_hidden_state"):
        encoder.reset_hidden_state(torch.ones(2, ROWS, DIM), [True, False, False])
    with pytest.raises(ValueError, match="has no rows along axis 0"):
        encoder.reset_hidden_state(torch.tensor(1.0), [True])
