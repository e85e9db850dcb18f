"""How encoders are translated.

A timestep encoder's translation returns the value; a trajectory encoder's returns the value and what it remembers,
one of the kinds in `memory`.

Shapes: H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from amago.kernels.attention.mods import as_options
from amago.nets.specs import as_obs_spec
from amago.nets.stepping.builder import Builder, NotTranslatedError, translates
from amago.nets.stepping.layers import acting_dropout, activation_of, is_nothing, layer_and_norm
from amago.nets.stepping.memory import MambaMemory, MemoryKind, NoMemory, RecurrentMemory, RingMemory
from amago.nets.traj_encoders.ff import FFTrajEncoder
from amago.nets.traj_encoders.gru import GRUTrajEncoder
from amago.nets.traj_encoders.identity import IdentityTrajEncoder
from amago.nets.traj_encoders.mamba import Mamba, MambaBlock, MambaTrajEncoder
from amago.nets.traj_encoders.transformer import TformerTrajEncoder
from amago.nets.transformer.attention import FlashAttention, SelfAttention, VanillaAttention
from amago.nets.transformer.flex_attention import (
    ClippedSlidingSinkAttention,
    FlexAttention,
    SlidingWindowFlexAttention,
    VanillaFlexAttention,
)
from amago.nets.transformer.layers import AttentionLayer, TransformerLayer
from amago.nets.transformer.model import Transformer
from amago.nets.transformer.positions import FixedPosEmb, LearnablePosEmb, RotaryPosEmb
from amago.nets.tstep_encoders.base import rl2_dim
from amago.nets.tstep_encoders.ff import FFTstepEncoder


@translates(FFTstepEncoder)
def ff_tstep_encoder(builder: Builder, module: FFTstepEncoder) -> tuple[int, list[tuple[str | None, int]]]:
    """The value, and the inputs that it is made of: observations by key and width, None for `rl2s`."""
    spec = as_obs_spec(module.obs_space)
    inputs: list[tuple[str | None, int]] = [
        (key, spec[key].dim) for key in builder.setting(module, "obs_keys")
    ]
    inputs.append((None, rl2_dim(module.rl2_space)))
    pieces = [(i, width, 0) for i, (_, width) in enumerate(inputs)]
    hidden = 1 if builder.setting(module, "hide_rewards") else 0
    if builder.setting(module, "hide_rl2s"):
        hidden = inputs[-1][1]
    pieces[-1] = (*pieces[-1][:2], hidden)
    x = builder.program.gather(pieces, symlog=builder.setting(module, "symlog_inputs"))
    x = builder.translate(module.in_norm, x)
    return builder.translate(module.out_norm, builder.translate(module.base, x)), inputs


@translates(IdentityTrajEncoder)
def identity_traj_encoder(builder: Builder, module: nn.Module, x: int) -> tuple[int, MemoryKind]:
    """Nothing."""
    return x, NoMemory()


@translates(FFTrajEncoder)
def ff_traj_encoder(builder: Builder, module: FFTrajEncoder, x: int) -> tuple[int, MemoryKind]:
    """The blocks of an encoder without memory."""
    acting_dropout(builder, module.dropout)
    x = builder.translate(module.traj_emb, x, activation=activation_of(builder, module.activation))
    builder.visit(module.traj_blocks)
    for block in module.traj_blocks:
        x = builder.translate(block, x)
    return builder.translate(module.out_norm, builder.translate(module.traj_last, x)), NoMemory()


@translates(GRUTrajEncoder)
def gru_traj_encoder(builder: Builder, module: GRUTrajEncoder, x: int) -> tuple[int, MemoryKind]:
    """Stacked recurrent cells, a linear layer and a norm."""
    rnn: Any = module.rnn
    builder.visit(rnn)
    if type(rnn) is not nn.GRU or rnn.bidirectional or not rnn.bias or rnn.proj_size:
        raise NotTranslatedError("only a GRU of one direction with biases has a translation")

    def gates(source: int, name: str) -> int:
        weights: Any = builder.weights(getattr(rnn, f"weight_{name}"), getattr(rnn, f"bias_{name}"))
        return builder.program.linear(source, 3 * rnn.hidden_size, weights)

    for layer in range(rnn.num_layers):
        hidden = builder.program.recall(layer, rnn.hidden_size)
        from_input, from_hidden = gates(x, f"ih_l{layer}"), gates(hidden, f"hh_l{layer}")
        x = builder.program.gru_cell(from_input, from_hidden, hidden, layer)
    out = layer_and_norm(builder, module.out, module.out_norm, x)
    return out, RecurrentMemory(rnn.num_layers, rnn.hidden_size)


@translates(MambaTrajEncoder)
def mamba_traj_encoder(builder: Builder, module: MambaTrajEncoder, x: int) -> tuple[int, MemoryKind]:
    """Residual layers, each with a state of its convolution and one of its recurrence."""
    x = builder.translate(module.inp, x)
    builder.visit(module.mambas)
    blocks: list[Any] = list(module.mambas)
    for layer, block in enumerate(blocks):
        x = builder.translate(block, x, 2 * layer)
    layer_of: Mamba = blocks[0].mamba
    conv = (layer_of.d_conv - 1, layer_of.d_inner)
    memory = MambaMemory(len(blocks), conv, (layer_of.d_inner, layer_of.d_state))
    return builder.translate(module.out_norm, x), memory


@translates(MambaBlock)
def mamba_block(builder: Builder, module: MambaBlock, x: int, state: int) -> int:
    """x + mamba(norm(x))."""
    return int(builder.translate(module.mamba, builder.translate(module.norm, x), state, add=x))


@translates(Mamba)
def mamba(builder: Builder, module: Mamba, x: int, state: int, add: int) -> int:
    """One layer; its states are the ones numbered `state` and `state + 1`.

    Raises:
        NotTranslatedError: if a backend of the scan is asked for.
    """
    backend = builder.setting(module, "backend")
    if backend not in ("auto", "cpp"):
        raise NotTranslatedError(f"the scan is asked for from {backend!r}")
    builder.visit(module.conv1d)
    if type(module.conv1d) is not nn.Conv1d:
        raise NotTranslatedError(f"{type(module.conv1d).__name__} has no translation")
    filters = builder.weights(module.conv1d.weight, module.conv1d.bias)
    scan = builder.weights(module.A_log, module.D)

    def taps() -> tuple[Tensor | None, Tensor | None]:
        weight, bias = filters()
        assert weight is not None
        return weight.detach()[:, 0].t(), bias

    def rates() -> tuple[Tensor | None, Tensor | None]:
        log_rates, skip = scan()
        assert log_rates is not None
        return -torch.exp(log_rates.detach()), skip

    xz = builder.translate(module.in_proj, x)
    u = builder.program.convolve(xz, module.d_inner, module.d_conv, state, taps)
    delta = builder.translate(module.x_proj, u, outputs=slice(0, module.dt_rank))
    delta = builder.translate(module.dt_proj, delta)
    bc = builder.translate(module.x_proj, u, outputs=slice(module.dt_rank, None))
    y = builder.program.scan(u, delta, bc, xz, state + 1, rates)
    return int(builder.translate(module.out_proj, y, add=add))


@translates(TformerTrajEncoder)
def tformer_traj_encoder(builder: Builder, module: TformerTrajEncoder, x: int) -> tuple[int, MemoryKind]:
    """The Transformer with a ring cache for each layer."""
    out = builder.translate(module.tformer, x)
    return out, RingMemory(module.n_layers, module.n_heads, module.head_dim)


@translates(Transformer)
def transformer(builder: Builder, module: Transformer, x: int) -> int:
    """Embedding, positions, layers and norm."""
    acting_dropout(builder, module.dropout)
    x = builder.translate(module.inp, x)
    if module.position_embedding is not None:
        builder.translate(module.position_embedding, x)
    builder.visit(module.layers)
    for number, layer in enumerate(module.layers):
        x = builder.translate(layer, x, number)
    return int(builder.translate(module.norm, x))


@translates(FixedPosEmb)
def fixed_positions(builder: Builder, module: FixedPosEmb, x: int) -> None:
    """Adds sinusoids."""
    builder.program.add_position(x, lambda count: module(torch.arange(count).unsqueeze(0))[0])


@translates(LearnablePosEmb)
def learned_positions(builder: Builder, module: LearnablePosEmb, x: int) -> None:
    """Adds learned vectors; a step without one is left to the module, which says so."""
    builder.visit(module.embeddings)
    if type(module.embeddings) is not nn.Embedding or module.embeddings.max_norm is not None:
        raise NotTranslatedError("only plain embeddings have a translation")
    weight = builder.weight(module.embeddings.weight)
    limit = min(module.max_time_idx, len(weight))
    builder.program.add_position(x, lambda count: weight[:count], limit=limit)


@translates(TransformerLayer)
def transformer_layer(builder: Builder, module: TransformerLayer, x: int, number: int) -> int:
    """Attention and feed-forward network, each added to the residual stream."""
    acting_dropout(builder, module.dropout_ff)
    activation = activation_of(builder, module.activation)
    attention: Any = module.attention_layer
    x = builder.translate(attention, builder.translate(module.norm1, x), number, module.norm2, x)
    hidden = builder.translate(module.ff1, builder.translate(module.norm3, x), activation=activation)
    hidden = builder.translate(module.norm4, hidden)
    return int(builder.translate(module.ff2, hidden, add=x))


@translates(AttentionLayer)
def attention_layer(
    builder: Builder, module: AttentionLayer, x: int, number: int, normalisation: nn.Module, add: int
) -> int:
    """add + normalisation(attention)."""
    acting_dropout(builder, module.dropout_qkv)
    heads = module.n_heads
    width = module.qkv_projection.out_features
    dim = width // (3 * heads)
    # Saved weights have the heads as the fastest axis, attention wants the features there.
    order = torch.arange(width).view(3, dim, heads).transpose(1, 2).reshape(-1)
    qkv = int(builder.translate(module.qkv_projection, x, outputs=order))
    if module.rope is not None:
        builder.translate(module.rope, qkv, heads)
    options = attention_options(builder, module.self_attention)
    attended = builder.program.attend(qkv, number, heads, dim, **options)
    project = module.out_projection
    scale = builder.weight(module.head_scaler)
    if is_nothing(builder, normalisation):
        return int(builder.translate(project, attended, add=add, inputs_scale=scale))
    out = builder.translate(project, attended, inputs_scale=scale)
    return int(builder.translate(normalisation, out, add=add))


def attention_options(builder: Builder, module: SelfAttention) -> dict[str, Any]:
    """The options of `StepProgram.attend` that a kind of attention means in a rollout.

    Raises:
        NotTranslatedError: if it is of another class than ours, or computes something else.
    """
    builder.visit(module)
    if type(module) is VanillaAttention:
        return {}
    if type(module) is FlashAttention:
        return {"window": builder.setting(module, "window")}
    kinds = (FlexAttention, VanillaFlexAttention, SlidingWindowFlexAttention, ClippedSlidingSinkAttention)
    options = None
    if type(module) in kinds:
        options = as_options(builder.setting(module, "score_mod"), builder.setting(module, "mask_mod"))
    if options is None:
        raise NotTranslatedError(f"{type(module).__name__} has no translation")
    return options


@translates(RotaryPosEmb)
def rotary_positions(builder: Builder, module: RotaryPosEmb, qkv: int, heads: int) -> None:
    """Rotates queries and keys."""
    half = module.head_dim // 2

    def table(count: int) -> Tensor:
        # What the module makes of the vectors (1, 0): their cosines, then their sines.
        unit = torch.zeros(1, count, 3, 1, module.head_dim)
        unit[..., :half] = 1.0
        turned: Tensor = module(unit, torch.arange(count).unsqueeze(0))
        return turned[0, :, 0, 0]

    builder.program.rotate(qkv, heads, module.head_dim, table)
