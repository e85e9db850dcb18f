"""Base class of timestep encoders, and their registry.

`rl2s` holds the meta-RL inputs (Duan et al. 2016, "RL²"): the previous reward, then the previous action.

Shapes: B batch, L timesteps, A action width.
"""

from abc import ABC, abstractmethod
from typing import Any

import gin
import torch
from torch import Tensor, nn

from amago.nets.arguments import check_arguments
from amago.nets.masking import current_timestep_mask, mask_from_filler, timestep_mask
from amago.nets.registry import Registry
from amago.nets.specs import as_obs_spec


@gin.configurable(module="amago.nets.tstep_encoders")
class TstepEncoder(nn.Module, ABC):
    """Maps each timestep to a vector. Subclasses override `inner_forward` and `emb_dim`.

    Args:
        obs_space: the space of dict observations, or a mapping of key to shape.
        rl2_space: the space of `rl2s`, or its shape (1 + A,).
        hide_rl2s: replace previous reward and action by zeros.
        hide_rewards: replace the previous reward by zero.
    """

    @check_arguments
    def __init__(
        self, obs_space: Any, rl2_space: Any, hide_rl2s: bool = False, hide_rewards: bool = False
    ) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.rl2_space = rl2_space
        self.hide_rl2s = hide_rl2s
        self.hide_rewards = hide_rewards

    def forward(self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None) -> Tensor:
        """Encodes observations (B, L, ...) and rl2s (B, L, 1 + A) as (B, L, emb_dim).

        The padding mask is derived before `rl2s` are hidden, for layers that keep running statistics.
        """
        mask = current_timestep_mask()
        if mask is None and self.training:
            mask = mask_from_filler(rl2s)
        if self.hide_rl2s:
            rl2s = torch.zeros_like(rl2s)
        elif self.hide_rewards:
            rl2s = torch.cat([torch.zeros_like(rl2s[..., :1]), rl2s[..., 1:]], dim=-1)
        with timestep_mask(mask):
            return self.inner_forward(obs, rl2s, log_dict=log_dict)

    @abstractmethod
    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """The encoder's network: observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, emb_dim)."""

    @property
    @abstractmethod
    def emb_dim(self) -> int:
        """Width of the output."""


def rl2_dim(rl2_space: Any) -> int:
    """The width 1 + A of `rl2s`, from its space or shape."""
    return as_obs_spec(rl2_space)["observation"].dim


_REGISTRY: Registry[TstepEncoder] = Registry("timestep encoder")

register_tstep_encoder = _REGISTRY.register
"""Class decorator that registers a timestep encoder by name; see `Registry.register`."""

get_tstep_encoder_cls = _REGISTRY.get
"""The class registered by a name; see `Registry.get`."""

list_registered_tstep_encoders = _REGISTRY.names
"""All names, sorted."""
