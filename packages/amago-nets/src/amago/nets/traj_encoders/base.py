"""Base class of trajectory encoders, and their registry.

In training, an encoder maps a whole sequence. In a rollout it is called with one timestep at a time and the hidden
state that the last call returned. Both must give the same output (up to the encoder's context window).

Shapes: B batch, L sequence, D features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from amago.nets.registry import Registry
from amago.nets.traj_encoders.hidden_state import reset_rows


class TrajEncoder(nn.Module, ABC):
    """A causal sequence model. Subclasses override `forward` and `emb_dim`, and the hidden-state methods if the
    initial hidden state is not None or a reset is not zeroing.

    Args:
        tstep_dim: width of the input timestep vectors.
        max_seq_len: longest sequence in training; the context window of encoders that have one.

    Raises:
        ValueError: if either is not positive.
    """

    def __init__(self, tstep_dim: int, max_seq_len: int) -> None:
        super().__init__()
        if tstep_dim < 1:
            raise ValueError(f"tstep_dim must be at least 1, got {tstep_dim!r}")
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len!r}")
        self.tstep_dim = tstep_dim
        self.max_seq_len = max_seq_len

    @property
    @abstractmethod
    def emb_dim(self) -> int:
        """Width of the output."""

    def init_hidden_state(self, batch_size: int, device: torch.device | str) -> Any:
        """The hidden state at the start of `batch_size` episodes; None if `forward` starts without one."""
        return None

    def reset_hidden_state(self, hidden_state: Any, dones: Any) -> Any:
        """The hidden state after the rows with True in `dones` (B,) have started a new episode.

        Here they become zero in every tensor, whose first axis must be the rows. Override it if an episode
        begins otherwise, or for another axis: `return reset_rows(hidden_state, dones, batch_dim=1)`.

        Raises:
            ValueError: if a tensor does not have one row for each of `dones`.
        """
        try:
            return reset_rows(hidden_state, dones)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}; override {type(self).__name__}.reset_hidden_state") from error

    @abstractmethod
    def forward(
        self,
        seq: Tensor,
        time_idxs: Tensor,
        hidden_state: Any = None,
        log_dict: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """Encodes (B, L, tstep_dim) as (B, L, emb_dim); returns it and the next hidden state.

        Args:
            seq: timestep vectors.
            time_idxs: index of each timestep in its episode, int64 (B, L, 1).
            hidden_state: the one returned by the last call; None at the start of a sequence.
            log_dict: collects metrics if given.
        """


_REGISTRY: Registry[TrajEncoder] = Registry("trajectory encoder")
_Encoder = TypeVar("_Encoder", bound=TrajEncoder)


def register_traj_encoder(name: str) -> Callable[[type[_Encoder]], type[_Encoder]]:
    """Class decorator that makes a trajectory encoder available as `name`.

    Raises:
        ValueError: if the name is taken.
    """
    return _REGISTRY.register(name)


def get_traj_encoder_cls(name: str) -> type[TrajEncoder]:
    """The class registered as `name`; raises ValueError that suggests the nearest name."""
    return _REGISTRY.get(name)


def list_registered_traj_encoders() -> list[str]:
    """All names, sorted."""
    return _REGISTRY.names()
