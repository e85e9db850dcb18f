"""`BaseAgent`: the base class of agents, with timestep encoder and trajectory encoder.

Shapes: B batch, L sequence length, A width of the action representation, S state width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from amago.agent.batch import Batch
from amago.agent.diagnostics import grad_norm
from amago.nets.arguments import Size, check_arguments
from amago.nets.masking import MAGIC_PAD_VAL, timestep_mask
from amago.nets.registry import Registry
from amago.nets.specs import as_action_spec
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.tstep_encoders import TstepEncoder

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self


def get_action_dim_and_type(action_space: Any) -> tuple[int, bool, bool]:
    """Returns (width of the action representation, is_discrete, is_multibinary)."""
    spec = as_action_spec(action_space)
    return spec.dim, spec.is_discrete, spec.kind == "multibinary"


class BaseAgent(nn.Module, ABC):
    """Base class of agents: encodes sequences of timesteps as states.

    Subclasses define `forward`, which computes the loss, and `get_actions`.

    Args:
        obs_space: Dict observation space, or anything that `amago.nets.specs.as_spec` accepts.
        rl2_space: Box of previous reward and action, or its spec.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box, or its spec.
        max_seq_len: maximum sequence length of the trajectory encoder in timesteps.
        tstep_encoder_type: timestep encoder class, `functools.partial` or function, called with `obs_space` and
            `rl2_space`.
        traj_encoder_type: trajectory encoder class, partial or function, called with `tstep_dim` and
            `max_seq_len`.

    Attributes:
        pad_val: fill value of padding in a batch.
        update_info: metrics of the last update.
    """

    pad_val: float = MAGIC_PAD_VAL

    @check_arguments
    def __init__(
        self,
        obs_space: Any,
        rl2_space: Any,
        action_space: Any,
        max_seq_len: Size,
        tstep_encoder_type: Callable[..., TstepEncoder],
        traj_encoder_type: Callable[..., TrajEncoder],
    ) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.rl2_space = rl2_space
        self.action_space = action_space
        self.action_spec = as_action_spec(action_space)
        self.action_dim, self.discrete, self.multibinary = get_action_dim_and_type(action_space)
        self.max_seq_len = max_seq_len
        self.tstep_encoder_type = tstep_encoder_type
        self.traj_encoder_type = traj_encoder_type
        self.update_info: dict[str, Tensor] = {}
        self._frozen: list[str] = []
        self.init_encoders()

    def init_encoders(self) -> None:
        """Builds `tstep_encoder` and `traj_encoder`."""
        self.tstep_encoder = self.tstep_encoder_type(obs_space=self.obs_space, rl2_space=self.rl2_space)
        self.traj_encoder = self.traj_encoder_type(
            tstep_dim=self.tstep_encoder.emb_dim, max_seq_len=self.max_seq_len
        )

    @property
    def state_dim(self) -> int:
        """Width S of the states, the input of actor and critics."""
        return self.traj_encoder.emb_dim

    def get_state_embedding(
        self,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """Encodes timesteps (B, L, ...) as states (B, L, S); also returns the new hidden state.

        Raises:
            ValueError: if the output width of an encoder is not its `emb_dim`.
        """
        embedded = self.tstep_encoder(obs=obs, rl2s=rl2s, log_dict=log_dict)
        _require_width(embedded, self.tstep_encoder)
        states, hidden_state = self.traj_encoder(
            embedded, time_idxs=time_idxs, hidden_state=hidden_state, log_dict=log_dict
        )
        _require_width(states, self.traj_encoder)
        return states, hidden_state

    def encode_batch(self, batch: Batch, log_dict: dict[str, Any] | None = None) -> Tensor:
        """Encodes a training batch as states (B, T+1, S); running statistics ignore padding."""
        with timestep_mask(batch.timestep_mask):
            states, _ = self.get_state_embedding(
                batch.obs, rl2s=batch.rl2s, time_idxs=batch.time_idxs, log_dict=log_dict
            )
        return states

    @abstractmethod
    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        """Returns the scalar loss of a batch; with `log_step`, writes metrics to `update_info`."""

    @abstractmethod
    def get_actions(
        self,
        obs: dict[str, Tensor],
        rl2s: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        sample: bool = True,
    ) -> tuple[Tensor, Any]:
        """Computes actions for the current timestep of every row.

        Args:
            obs: tensors (B, 1, ...).
            rl2s: (B, 1, 1 + A).
            time_idxs: (B, 1, 1) int64.
            hidden_state: from the previous call, or from `init_hidden_state`.
            sample: if True, sample from the policy; if False, return its mode.

        Returns:
            Actions (B, 1, K) and the new hidden state. Box: K = A floats in [-1, 1]. Discrete: K = 1 index.
            MultiDiscrete: one index per component. MultiBinary: K = A zeros and ones.
        """

    @property
    def trainable_params(self) -> list[nn.Parameter]:
        """The parameters that the optimizer updates."""
        return [p for p in self.parameters() if p.requires_grad]

    def freeze(self, *networks: str) -> None:
        """Stops training networks: no gradients, no running statistics, no dropout.

        Call it before the optimizer is created, as in `Experiment.init_agent`.

        Args:
            networks: names of submodules, such as "tstep_encoder" or "actor.base".

        Raises:
            ValueError: if there is no submodule of such a name.
        """
        for name in networks:
            try:
                network = self.get_submodule(name)
            except AttributeError as error:
                names = ", ".join(child for child, _ in self.named_children())
                raise ValueError(f"{type(self).__name__} has no network {name!r}; it has {names}") from error
            network.requires_grad_(False)
            self._frozen.append(name)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Sets training mode as in torch; networks that `freeze` names stay in eval mode."""
        super().train(mode)
        for name in self._frozen:
            self.get_submodule(name).eval()
        return self

    def hard_sync_targets(self) -> None:
        """Copies the online networks into the target networks."""

    def soft_sync_targets(self) -> None:
        """Updates the target networks towards the online networks (Polyak averaging)."""

    def get_grad_norms(self) -> dict[str, Tensor]:
        """Returns the gradient norms of the networks by metric name."""
        return {
            "TrajEncoder Grad Norm": grad_norm(self.traj_encoder.parameters()),
            "TstepEncoder Grad Norm": grad_norm(self.tstep_encoder.parameters()),
        }

    def init_hidden_state(self, batch_size: int, device: torch.device | str) -> Any:
        """Returns the trajectory encoder's initial hidden state for `batch_size` rows; may be None."""
        return self.traj_encoder.init_hidden_state(batch_size, device)

    def reset_hidden_state(self, hidden_state: Any, dones: Tensor | np.ndarray | Sequence[bool]) -> Any:
        """Resets the hidden state of the rows where `dones` (one bool per row) is True."""
        return self.traj_encoder.reset_hidden_state(hidden_state, dones)

    def edit_actor_mask(self, batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
        """Hook: returns the mask of the actor loss (B, T, G, 1); `pad_mask` is False for padding.

        A float mask weights the entries. A function with these arguments may also be assigned to an agent:
        `agent.edit_actor_mask = f`.
        """
        return pad_mask

    def edit_critic_mask(self, batch: Batch, critic_loss: Tensor, pad_mask: Tensor) -> Tensor:
        """Hook: returns the mask of the critic loss (B, T, C, G, 1); see `edit_actor_mask`."""
        return pad_mask

    def on_checkpoint_loaded(self, is_resume: bool = False) -> None:
        """Hook: called after weights were loaded; `is_resume` is True if a run is resumed."""


def _require_width(encoded: Tensor, encoder: TstepEncoder | TrajEncoder) -> None:
    """Raises ValueError unless the output width of `encoder` is its `emb_dim`."""
    if encoded.shape[-1] != encoder.emb_dim:
        name = type(encoder).__name__
        raise ValueError(
            f"{name}.emb_dim is {encoder.emb_dim}, but its output is {encoded.shape[-1]} wide "
            f"{tuple(encoded.shape)}: emb_dim must be the width of the output of {name}"
        )


_AGENTS: Registry[BaseAgent] = Registry("agent")

register_agent = _AGENTS.register
"""Class decorator that registers an agent by name; see `Registry.register`."""

get_agent_cls = _AGENTS.get
"""Returns the agent class registered by a name; see `Registry.get`."""

list_registered_agents = _AGENTS.names
"""Returns all registered names, sorted."""
