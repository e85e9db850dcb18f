"""Mamba trajectory encoder: a selective state-space model with constant cost per step.

Shapes: B batch, L sequence, D model width, I = expand * D inner width, N states per inner channel, K width of the
convolution.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gin
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.kernels import linear, selective_scan, selective_scan_step
from amago.kernels.backends import operations
from amago.nets.arguments import Size, check_arguments
from amago.nets.checkpointing import run_checkpointed
from amago.nets.linear import Linear
from amago.nets.normalization import Norm, Normalization
from amago.nets.precision import at_least_float32
from amago.nets.registry import did_you_mean
from amago.nets.traj_encoders.base import TrajEncoder, register_traj_encoder
from amago.nets.utils import add_activation_log

_BACKENDS = ("auto", *(implementation.backend.value for implementation in operations()["selective_scan"]))


class MambaHiddenState(NamedTuple):
    """The hidden state of a Mamba, of fixed size.

    Args:
        conv: per layer, the last K - 1 inputs of the convolution (B, K - 1, I).
        ssm: per layer, the states (B, I, N), in float32 also under autocast.
    """

    conv: tuple[Tensor, ...]
    ssm: tuple[Tensor, ...]


class Mamba(nn.Module):
    """The selective state-space layer (Gu and Dao 2023, section 3.4), with the parameter names of the
    reference code.

    Initialised as in the reference: step sizes log-uniform in [0.001, 0.1], rates A = -(1, ..., N), D = 1.

    Args:
        d_model: D.
        d_state: N.
        d_conv: K.
        expand: I / D.
        backend: backend of the scan, see `amago.kernels.selective_scan`.
    """

    @check_arguments
    def __init__(
        self, d_model: Size, d_state: Size = 16, d_conv: Size = 4, expand: Size = 2, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.d_inner = expand * d_model
        self.d_state = d_state
        self.d_conv = d_conv
        self.dt_rank = math.ceil(d_model / 16)
        self.backend = backend
        self.in_proj = Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner)
        self.x_proj = Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = Linear(self.dt_rank, self.d_inner)
        rates = torch.arange(1, d_state + 1, dtype=torch.float32)
        self.A_log = nn.Parameter(rates.log().repeat(self.d_inner, 1))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = Linear(self.d_inner, d_model, bias=False)
        self._init_step_sizes()

    @torch.no_grad()
    def _init_step_sizes(self) -> None:
        """Initialises the step sizes: softplus of the bias is log-uniform in [0.001, 0.1]."""
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        steps = torch.empty(self.d_inner).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # inverse of softplus

    def forward(
        self, x: Tensor, conv: Tensor | None = None, ssm: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Processes the next L timesteps of a sequence.

        Args:
            x: (B, L, D).
            conv: the previous K - 1 inputs of the convolution (B, K - 1, I); None at the start.
            ssm: the previous states (B, I, N); None at the start.

        Returns:
            The output (B, L, D) and both states after the last timestep; `ssm` stays None if it was None.
        """
        inputs, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, L, I) each
        if conv is None:
            conv = inputs.new_zeros((inputs.shape[0], self.d_conv - 1, self.d_inner))
        inputs = torch.cat([conv, inputs], dim=1)  # (B, K - 1 + L, I)
        conv = inputs[:, inputs.shape[1] - (self.d_conv - 1) :]
        u = F.silu(self._convolve(inputs))  # (B, I, L)
        delta, B, C = self.x_proj(u.transpose(1, 2)).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        delta = linear(delta, self.dt_proj.weight)  # (B, L, I); the scan adds the bias
        delta, B, C, gate = (s.transpose(1, 2) for s in (delta, B, C, gate))  # (B, ·, L) each
        y, ssm = self._scan(u, delta, B, C, gate, ssm)
        return self.out_proj(y.transpose(1, 2)), conv, ssm

    def initial_states(self, batch_size: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Initial `conv` and `ssm` of `forward`: zeros."""
        dtype = self.in_proj.weight.dtype
        conv = torch.zeros((batch_size, self.d_conv - 1, self.d_inner), dtype=dtype, device=device)
        wide = torch.promote_types(dtype, torch.float32)
        return conv, torch.zeros((batch_size, self.d_inner, self.d_state), dtype=wide, device=device)

    def _convolve(self, inputs: Tensor) -> Tensor:
        """Causal depthwise convolution: (B, K - 1 + L, I) -> (B, I, L).

        A two-dimensional convolution accepts channels-last memory without a copy.
        """
        image = inputs.transpose(1, 2).unsqueeze(2)  # (B, I, 1, K - 1 + L)
        out = F.conv2d(image, self.conv1d.weight.unsqueeze(2), self.conv1d.bias, groups=self.d_inner)
        return out.squeeze(2)

    def _scan(
        self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, gate: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Scans u (B, I, L): outputs (B, I, L), and the last state if an initial one is given."""
        A = -torch.exp(at_least_float32(self.A_log))
        skip, bias = self.D, self.dt_proj.bias
        if state is None:
            y = selective_scan(u, delta, A, B, C, skip, gate, bias, True, backend=self.backend)
        elif u.shape[-1] > 1:
            y, state = selective_scan(
                u,
                delta,
                A,
                B,
                C,
                skip,
                gate,
                bias,
                True,
                initial_state=state,
                return_last_state=True,
                backend=self.backend,
            )
        else:
            u, delta, B, C, gate = (x.squeeze(-1) for x in (u, delta, B, C, gate))
            y, state = selective_scan_step(
                state, u, delta, A, B, C, skip, gate, bias, True, backend=self.backend
            )
            y = y.unsqueeze(-1)
        return y, state


class MambaBlock(nn.Module):
    """A pre-norm residual layer: x + mamba(norm(x)).

    Args:
        mamba: the layer.
        d_model: D.
        norm: kind of normalisation, see `amago.nets.ff.Normalization`.
        activation_checkpointing: compute the activations again in the backward pass instead of keeping them.
    """

    def __init__(
        self, mamba: Mamba, d_model: int, norm: Norm | None, *, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.mamba = mamba
        self.norm = Normalization(norm, d_model)

    def forward(
        self, x: Tensor, conv: Tensor | None = None, ssm: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Applies the block to (B, L, D); states as in `Mamba.forward`."""
        if self.activation_checkpointing and ssm is None:
            return run_checkpointed(self._run, x, conv, ssm)
        return self._run(x, conv, ssm)

    def _run(
        self, x: Tensor, conv: Tensor | None, ssm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        out, conv, ssm = self.mamba(self.norm(x), conv, ssm)
        return x + out, conv, ssm


@register_traj_encoder("mamba")
@gin.configurable(module="amago.nets.traj_encoders")
class MambaTrajEncoder(TrajEncoder):
    """A stack of Mamba layers (Gu and Dao 2023): parallel over sequences in training like a Transformer, with
    constant cost per step and unlimited context in rollouts like a recurrent network.

    The scan runs on any machine; see `amago.kernels.selective_scan` for its backends.

    Args:
        tstep_dim: width of the timestep vectors.
        max_seq_len: longest sequence in training; rollouts may be longer.
        d_model: D, width of the residual stream and of the output.
        d_state: N, states per inner channel.
        d_conv: K, kernel width of the convolution.
        expand: inner width of a layer in units of `d_model`.
        n_layers: number of layers.
        norm: normalisation before each layer and of the output, see `Normalization`.
        backend: backend of the scan, "auto" or one of the backends of `amago.kernels.selective_scan`.
        activation_checkpointing: compute the activations of each layer again in the backward pass instead of
            keeping them: less memory for long sequences, the same results, about a third more time.

    Raises:
        ValueError: for a size below 1 or an unknown backend.
    """

    @check_arguments
    def __init__(
        self,
        tstep_dim: Size,
        max_seq_len: Size,
        d_model: Size = 256,
        d_state: Size = 16,
        d_conv: Size = 4,
        expand: Size = 2,
        n_layers: Size = 3,
        norm: Norm | None = "layer",
        backend: str = "auto",
        *,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__(tstep_dim, max_seq_len)
        sizes = {"d_model": d_model, "d_state": d_state, "d_conv": d_conv, "expand": expand}
        if backend not in _BACKENDS:
            hint = did_you_mean(backend, _BACKENDS)
            raise ValueError(f"unknown backend {backend!r}. Choose from {', '.join(_BACKENDS)}.{hint}")
        self.d_model = d_model
        self.inp = Linear(tstep_dim, d_model)
        self.mambas = nn.ModuleList(
            MambaBlock(
                Mamba(**sizes, backend=backend),
                d_model,
                norm,
                activation_checkpointing=activation_checkpointing,
            )
            for _ in range(n_layers)
        )
        self.out_norm = Normalization(norm, d_model)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_model`."""
        return self.d_model

    def init_hidden_state(self, batch_size: int, device: torch.device | str) -> MambaHiddenState:
        """Zeros for `batch_size` rows."""
        conv, ssm = [], []
        for block in self.mambas:
            assert isinstance(block, MambaBlock)
            before, state = block.mamba.initial_states(batch_size, device)
            conv.append(before)
            ssm.append(state)
        return MambaHiddenState(tuple(conv), tuple(ssm))

    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor | None = None,
        hidden_state: MambaHiddenState | None = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, MambaHiddenState | None]:
        """(B, L, tstep_dim) to (B, L, d_model), and the hidden state after the last timestep if one was given."""
        x = self.inp(seq)
        layers = len(self.mambas)
        old_conv = (None,) * layers if hidden_state is None else hidden_state.conv
        old_ssm = (None,) * layers if hidden_state is None else hidden_state.ssm
        conv, ssm = [], []
        for block, before, state in zip(self.mambas, old_conv, old_ssm, strict=True):
            x, before, state = block(x, before, state)
            conv.append(before)
            ssm.append(state)
        out = self.out_norm(x)
        add_activation_log("traj_encoder", out, log_dict)
        if hidden_state is not None:
            hidden_state = MambaHiddenState(tuple(conv), tuple(ssm))
        return out, hidden_state
