"""How encoders become operations of a program, and how a step reads and writes their hidden states.

A timestep encoder's translation returns the value of its output and the inputs that it reads. A trajectory
encoder's returns the value and a `HiddenState`.

Shapes: B rows, W slots of a ring cache, H heads, D head dimension, I channels and N states of a Mamba layer, K
width of its convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amago.kernels.acting import StateBuffers
from amago.kernels.attention.mods import as_options
from amago.nets.compiled_actor.translation import (
    Builder,
    NotTranslatedError,
    activation_of,
    is_identity,
    layer_and_norm,
    skip_dropout,
    translates,
)
from amago.nets.specs import as_obs_spec
from amago.nets.traj_encoders.ff import FFTrajEncoder
from amago.nets.traj_encoders.gru import GRUTrajEncoder
from amago.nets.traj_encoders.identity import IdentityTrajEncoder
from amago.nets.traj_encoders.mamba import Mamba, MambaBlock, MambaHiddenState, MambaTrajEncoder
from amago.nets.traj_encoders.transformer import TformerTrajEncoder
from amago.nets.transformer.attention import FlashAttention, VanillaAttention
from amago.nets.transformer.cache import TformerHiddenState
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

TstepInputs = list[tuple[str | None, int]]
"""Key and width of each observation that a timestep encoder reads; None stands for `rl2s`."""


HiddenState = Callable[[int, Any], tuple[StateBuffers, Any] | None]
"""Maps the number of rows and a hidden state to the buffers of a step and the hidden state after it; None if the
program cannot use this hidden state."""


def _usable(x: Tensor, shape: tuple[int, ...]) -> bool:
    return x.shape == shape and x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _no_memory(batch: int, hidden_state: Any) -> tuple[StateBuffers, Any]:
    """Buffers for an encoder without memory, which returns the hidden state that it is given."""
    return StateBuffers(), hidden_state


def _ring_caches(layers: int, heads: int, dim: int) -> HiddenState:
    """The ring caches of a Transformer, updated in place."""

    def buffers(batch: int, hidden_state: Any) -> tuple[StateBuffers, Any] | None:
        if type(hidden_state) is not TformerHiddenState:
            return None
        keys, values = hidden_state.key_cache.data, hidden_state.val_cache.data
        lengths = hidden_state.seq_lens
        shape = (layers, batch, keys.shape[2], heads, dim)
        if not _usable(keys, shape) or not _usable(values, shape):
            return None
        if lengths.shape != (batch,) or lengths.dtype != torch.int64 or not lengths.is_contiguous():
            return None
        return StateBuffers(keys=keys, values=values, lengths=lengths), hidden_state

    return buffers


def _recurrent_states(layers: int, width: int) -> HiddenState:
    """The hidden states (layers, B, width) of a GRU, None for zeros; every step writes new ones."""

    def buffers(batch: int, hidden_state: Any) -> tuple[StateBuffers, Any] | None:
        shape = (layers, batch, width)
        if hidden_state is None:
            hidden_state = torch.zeros(shape)
        if not isinstance(hidden_state, Tensor) or not _usable(hidden_state, shape):
            return None
        after = torch.empty(shape)
        states = list(zip(hidden_state.unbind(), after.unbind(), strict=True))
        return StateBuffers(states=states), after

    return buffers


def _mamba_states(layers: int, conv: tuple[int, int], ssm: tuple[int, int]) -> HiddenState:
    """The states of Mamba layers, convolution (K - 1, I) before recurrence (I, N); every step writes new ones."""

    def buffers(batch: int, hidden_state: Any) -> tuple[StateBuffers, Any] | None:
        if type(hidden_state) is not MambaHiddenState:
            return None
        before = (hidden_state.conv, hidden_state.ssm)
        shapes = ((batch, *conv), (batch, *ssm))
        for tensors, shape in zip(before, shapes, strict=True):
            if len(tensors) != layers or not all(_usable(tensor, shape) for tensor in tensors):
                return None
        after = tuple(torch.empty(layers, *shape).unbind() for shape in shapes)
        states = [(before[kind][layer], after[kind][layer]) for layer in range(layers) for kind in (0, 1)]
        return StateBuffers(states=states), MambaHiddenState(*after)

    return buffers


@translates(FFTstepEncoder)
def ff_tstep_encoder(builder: Builder, module: FFTstepEncoder) -> tuple[int, TstepInputs]:
    """Input norm and MLP on the concatenated observations, previous reward and action."""
    spec = as_obs_spec(module.obs_space)
    inputs: TstepInputs = [(key, spec[key].dim) for key in module.obs_keys]
    inputs.append((None, rl2_dim(module.rl2_space)))
    parts = [(i, width, 0) for i, (_, width) in enumerate(inputs)]
    hidden = 1 if module.hide_rewards else 0
    if module.hide_rl2s:
        hidden = inputs[-1][1]
    parts[-1] = (*parts[-1][:2], hidden)
    x = builder.program.gather(parts, symlog=module.symlog_inputs)
    x = builder.translate(module.in_norm, x)
    return builder.translate(module.out_norm, builder.translate(module.base, x)), inputs


@translates(IdentityTrajEncoder)
def identity_traj_encoder(builder: Builder, module: nn.Module, x: int) -> tuple[int, HiddenState]:
    """Passes its input on."""
    return x, _no_memory


@translates(FFTrajEncoder)
def ff_traj_encoder(builder: Builder, module: FFTrajEncoder, x: int) -> tuple[int, HiddenState]:
    """The blocks of an encoder without memory."""
    skip_dropout(module.dropout)
    x = builder.translate(module.traj_emb, x, activation=activation_of(module.activation))
    for block in module.traj_blocks:
        x = builder.translate(block, x)
    return builder.translate(module.out_norm, builder.translate(module.traj_last, x)), _no_memory


@translates(GRUTrajEncoder)
def gru_traj_encoder(builder: Builder, module: GRUTrajEncoder, x: int) -> tuple[int, HiddenState]:
    """Stacked recurrent cells, a linear layer and a norm."""
    rnn: Any = module.rnn
    if type(rnn) is not nn.GRU or rnn.bidirectional or not rnn.bias or rnn.proj_size:
        raise NotTranslatedError("only a GRU of one direction with biases has a translation")

    def gates(source: int, name: str) -> int:
        return builder.program.linear(source, getattr(rnn, f"weight_{name}"), getattr(rnn, f"bias_{name}"))

    for layer in range(rnn.num_layers):
        hidden = builder.program.read_state(layer, rnn.hidden_size)
        from_input, from_hidden = gates(x, f"ih_l{layer}"), gates(hidden, f"hh_l{layer}")
        x = builder.program.gru_cell(from_input, from_hidden, hidden, layer)
    out = layer_and_norm(builder, module.out, module.out_norm, x)
    return out, _recurrent_states(rnn.num_layers, rnn.hidden_size)


@translates(MambaTrajEncoder)
def mamba_traj_encoder(builder: Builder, module: MambaTrajEncoder, x: int) -> tuple[int, HiddenState]:
    """Residual layers, each with a state of its convolution and one of its recurrence."""
    x = builder.translate(module.inp, x)
    blocks: list[Any] = list(module.mambas)
    for layer, block in enumerate(blocks):
        x = builder.translate(block, x, 2 * layer)
    layer_of: Mamba = blocks[0].mamba
    conv = (layer_of.d_conv - 1, layer_of.d_inner)
    memory = _mamba_states(len(blocks), conv, (layer_of.d_inner, layer_of.d_state))
    return builder.translate(module.out_norm, x), memory


@translates(MambaBlock)
def mamba_block(builder: Builder, module: MambaBlock, x: int, state: int) -> int:
    """x + mamba(norm(x))."""
    return int(builder.translate(module.mamba, builder.translate(module.norm, x), state, add=x))


@translates(Mamba)
def mamba(builder: Builder, module: Mamba, x: int, state: int, add: int) -> int:
    """One layer; its states have the indices `state` and `state + 1`.

    Raises:
        NotTranslatedError: if the layer asks for another backend than C++.
    """
    if module.backend not in ("auto", "cpp"):
        raise NotTranslatedError(f"the scan is to run by {module.backend!r}")
    if type(module.conv1d) is not nn.Conv1d:
        raise NotTranslatedError(f"{type(module.conv1d).__name__} has no translation to C++")
    filters, bias = module.conv1d.weight[:, 0].t(), module.conv1d.bias
    assert bias is not None
    xz = builder.translate(module.in_proj, x)
    u = builder.program.convolve(xz, state, filters, bias)
    delta = builder.translate(module.x_proj, u, outputs=slice(0, module.dt_rank))
    delta = builder.translate(module.dt_proj, delta)
    bc = builder.translate(module.x_proj, u, outputs=slice(module.dt_rank, None))
    y = builder.program.scan(u, delta, bc, xz, state + 1, -torch.exp(module.A_log), module.D)
    return int(builder.translate(module.out_proj, y, add=add))


@translates(TformerTrajEncoder)
def tformer_traj_encoder(builder: Builder, module: TformerTrajEncoder, x: int) -> tuple[int, HiddenState]:
    """The Transformer with a ring cache for each layer."""
    out = builder.translate(module.tformer, x)
    return out, _ring_caches(module.n_layers, module.n_heads, module.head_dim)


@translates(Transformer)
def transformer(builder: Builder, module: Transformer, x: int) -> int:
    """Embedding, positions, layers and norm."""
    skip_dropout(module.dropout)
    x = builder.translate(module.inp, x)
    if module.position_embedding is not None:
        builder.translate(module.position_embedding, x)
    for number, layer in enumerate(module.layers):
        x = builder.translate(layer, x, number)
    return int(builder.translate(module.norm, x))


@translates(FixedPosEmb)
def fixed_positions(builder: Builder, module: FixedPosEmb, x: int) -> None:
    """Adds sinusoids."""
    builder.program.add_position(x, lambda count: module(torch.arange(count).unsqueeze(0))[0])


@translates(LearnablePosEmb)
def learned_positions(builder: Builder, module: LearnablePosEmb, x: int) -> None:
    """Adds learned vectors; the module raises the error of a step without one."""
    if type(module.embeddings) is not nn.Embedding or module.embeddings.max_norm is not None:
        raise NotTranslatedError("only plain embeddings have a translation")
    weight = module.embeddings.weight.detach()
    limit = min(module.max_time_idx, len(weight))
    builder.program.add_position(x, lambda count: weight[:count], limit=limit)


@translates(TransformerLayer)
def transformer_layer(builder: Builder, module: TransformerLayer, x: int, number: int) -> int:
    """Attention and feed-forward network, each added to the residual stream."""
    skip_dropout(module.dropout_ff)
    activation = activation_of(module.activation)
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
    skip_dropout(module.dropout_qkv)
    heads = module.n_heads
    width = module.qkv_projection.out_features
    dim = width // (3 * heads)
    # In saved weights heads are the fastest axis, in attention features are.
    order = torch.arange(width).view(3, dim, heads).transpose(1, 2).reshape(-1)
    qkv = int(builder.translate(module.qkv_projection, x, outputs=order))
    if module.rope is not None:
        builder.translate(module.rope, qkv, heads)
    options = _attention_options(module.self_attention)
    attended = builder.program.attend(qkv, number, heads, dim, **options)
    project = module.out_projection
    scale = module.head_scaler
    if is_identity(normalisation):
        return int(builder.translate(project, attended, add=add, inputs_scale=scale))
    out = builder.translate(project, attended, inputs_scale=scale)
    return int(builder.translate(normalisation, out, add=add))


def _attention_options(module: Any) -> dict[str, Any]:
    """The options of `Program.attend` for a class of self-attention.

    Raises:
        NotTranslatedError: for another class, or score and mask functions without a closed form.
    """
    if type(module) is VanillaAttention:
        return {}
    if type(module) is FlashAttention:
        return {"window": module.window}
    kinds = (FlexAttention, VanillaFlexAttention, SlidingWindowFlexAttention, ClippedSlidingSinkAttention)
    options = None
    if type(module) in kinds:
        options = as_options(module.score_mod, module.mask_mod)
    if options is None:
        raise NotTranslatedError(f"{type(module).__name__} has no translation to C++")
    return options


@translates(RotaryPosEmb)
def rotary_positions(builder: Builder, module: RotaryPosEmb, qkv: int, heads: int) -> None:
    """Rotates queries and keys."""
    half = module.head_dim // 2

    def table(count: int) -> Tensor:
        # The module rotates the vectors (1, 0) to their cosines, then their sines.
        unit = torch.zeros(1, count, 3, 1, module.head_dim)
        unit[..., :half] = 1.0
        turned: Tensor = module(unit, torch.arange(count).unsqueeze(0))
        return turned[0, :, 0, 0]

    builder.program.rotate(qkv, heads, module.head_dim, table)
