"""Timestep encoder for arrays: flattened, standardised by running statistics, and through an MLP.

Shapes: B batch, L timesteps, A action width, D features of all observations together.
"""

from collections.abc import Sequence
from typing import Any

import gin
import torch
from torch import Tensor

from amago.nets.activations import Activation
from amago.nets.arguments import Size, check_arguments
from amago.nets.ff import MLP
from amago.nets.input_norm import InputNorm
from amago.nets.normalization import Norm, Normalization
from amago.nets.registry import did_you_mean
from amago.nets.specs import ObsSpec, as_obs_spec
from amago.nets.tstep_encoders.base import TstepEncoder, register_tstep_encoder, rl2_dim
from amago.nets.utils import add_activation_log, symlog


@register_tstep_encoder("ff")
@gin.configurable(module="amago.nets.tstep_encoders")
class FFTstepEncoder(TstepEncoder):
    """An MLP on the concatenation of all observations, in alphabetical order of their keys, and `rl2s`.

    Args:
        obs_space: the space of dict observations, or a mapping of key to shape.
        rl2_space: the space of `rl2s`, or its shape (1 + A,).
        n_layers: number of hidden layers.
        d_hidden: width of a hidden layer.
        d_output: width of the output.
        norm: normalisation of hidden layers, see `Normalization`.
        out_norm: normalisation of the output.
        activation: see `activation_switch`.
        hide_rl2s: replace previous reward and action by zeros.
        normalize_inputs: standardise the input by running statistics, which are tracked in either case.
        specify_obs_keys: keys of the observations to use; None uses all.
        auto_scale: widen hidden layers to the number of input features where that is larger than `d_hidden`.
        symlog_inputs: apply symlog to all features, `rl2s` included, before they are standardised: for inputs
            whose magnitudes differ by powers of ten.

    Raises:
        ValueError: if a key of `specify_obs_keys` is not in the space, or it is empty.
    """

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        n_layers: Size = 2,
        d_hidden: Size = 512,
        d_output: Size = 256,
        norm: Norm | None = None,
        out_norm: Norm | None = "layer",
        activation: Activation = "leaky_relu",
        hide_rl2s: bool = False,
        normalize_inputs: bool = True,
        specify_obs_keys: Sequence[str] | None = None,
        auto_scale: bool = False,
        symlog_inputs: bool = False,
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space, hide_rl2s=hide_rl2s)
        spec = as_obs_spec(obs_space)
        self.obs_keys = _select_keys(spec, specify_obs_keys)
        d_inp = sum(spec[key].dim for key in self.obs_keys) + rl2_dim(rl2_space)
        self.d_output = d_output
        self.symlog_inputs = symlog_inputs
        self.in_norm = InputNorm(d_inp, skip=not normalize_inputs)
        self.base = MLP(
            d_inp=d_inp,
            d_hidden=max(d_hidden, d_inp) if auto_scale else d_hidden,
            n_layers=n_layers,
            d_output=d_output,
            activation=activation,
            normalization=norm,
        )
        self.out_norm = Normalization(out_norm, d_output)

    @property
    def emb_dim(self) -> int:
        """Width of the output, `d_output`."""
        return self.d_output

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, d_output)."""
        rows = rl2s.shape[:-1]
        arrays = [obs[key].reshape(*rows, -1).to(rl2s.dtype) for key in self.obs_keys]
        x = torch.cat([*arrays, rl2s], dim=-1)  # (B, L, D + 1 + A)
        if self.symlog_inputs:
            x = symlog(x)
        if self.training:
            self.in_norm.update_stats(x)
        out: Tensor = self.out_norm(self.base(self.in_norm(x)))
        add_activation_log("tstep_encoder", out, log_dict)
        return out


def _select_keys(spec: ObsSpec, wanted: Sequence[str] | None) -> list[str]:
    """The observation keys to use, in alphabetical order; ValueError for an unknown one."""
    for key in wanted or ():
        if key not in spec:
            hint = did_you_mean(key, spec)
            raise ValueError(
                f"specify_obs_keys holds {key!r}, which is not an observation key. "
                f"Keys are {', '.join(sorted(spec))}.{hint}"
            )
    keys = sorted(spec if wanted is None else set(wanted))
    if not keys:
        raise ValueError(
            f"specify_obs_keys must name at least one of {', '.join(sorted(spec))}, got {wanted!r}"
        )
    return keys
