"""Activation checkpointing: the same outputs, gradients and state of the layers, with fewer saved activations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amago.nets import transformer
from amago.nets.traj_encoders import MambaTrajEncoder, TformerTrajEncoder, TrajEncoder

BATCH, LENGTH, WIDTH = 2, 48, 8
TRANSFORMER: dict[str, Any] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3}
DROPOUT = {"dropout_ff": 0.2, "dropout_emb": 0.1, "dropout_qkv": 0.1}
KINDS = {
    "transformer": (TformerTrajEncoder, TRANSFORMER),
    "transformer with dropout": (TformerTrajEncoder, TRANSFORMER | DROPOUT),
    "transformer with rope": (TformerTrajEncoder, TRANSFORMER | {"pos_emb": "rope"}),
    "transformer, eager": (
        TformerTrajEncoder,
        TRANSFORMER | {"attention_type": transformer.VanillaAttention, "dropout_attn": 0.1},
    ),
    "mamba": (MambaTrajEncoder, {"d_model": 16, "n_layers": 3}),
}


def make(kind: str, *, checkpointing: bool, seed: int = 0) -> TrajEncoder:
    encoder_type, options = KINDS[kind]
    torch.manual_seed(seed)
    return encoder_type(WIDTH, LENGTH, **options, activation_checkpointing=checkpointing)


def train_step(encoder: TrajEncoder) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], int]:
    """Output, gradients and state after an update's passes, and the bytes that autograd kept between them."""
    generator = torch.Generator().manual_seed(1)
    sequence = torch.randn(BATCH, LENGTH, WIDTH, generator=generator, requires_grad=True)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out, _ = encoder(sequence, torch.arange(LENGTH).view(1, -1, 1).expand(BATCH, -1, -1))
    weights = sum(parameter.untyped_storage().nbytes() for parameter in encoder.parameters())
    out.square().sum().backward()
    assert sequence.grad is not None
    grads = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    state = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    return out.detach(), grads | {"input": sequence.grad}, state, max(0, sum(kept.values()) - weights)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_gradients_and_state_are_those_of_plain_layers(kind: str) -> None:
    plain, checkpointed = make(kind, checkpointing=False), make(kind, checkpointing=True)
    out, grads, state, kept = train_step(plain)
    out_again, grads_again, state_again, kept_again = train_step(checkpointed)
    assert torch.equal(out, out_again)
    assert grads.keys() == grads_again.keys()
    for name, grad in grads.items():
        assert torch.equal(grad, grads_again[name]), name
    for name, tensor in state.items():
        assert torch.equal(tensor, state_again[name]), name
    assert kept_again < 0.5 * kept


def test_a_second_power_iteration_in_the_backward_pass_would_change_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = train_step(make("transformer", checkpointing=False))[1]
    monkeypatch.setattr("amago.nets.transformer.layers.is_recomputing", lambda: False)
    found = train_step(make("transformer", checkpointing=True))[1]
    assert not all(torch.equal(grad, found[name]) for name, grad in expected.items())


@pytest.mark.parametrize("kind", ["transformer", "mamba"])
def test_rollouts_do_not_differ(kind: str) -> None:
    outputs = []
    for checkpointing in (False, True):
        encoder: nn.Module = make(kind, checkpointing=checkpointing).eval()
        assert isinstance(encoder, TrajEncoder)
        hidden_state = encoder.init_hidden_state(BATCH, "cpu")
        out, _ = encoder(
            torch.ones(BATCH, 1, WIDTH), torch.zeros(BATCH, 1, 1, dtype=torch.int64), hidden_state
        )
        outputs.append(out)
    assert torch.equal(*outputs)
