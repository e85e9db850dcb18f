"""The interface of trajectory encoders and their registry.

In training an encoder maps a whole sequence at once. In a rollout it is called with one timestep at a time
and the hidden state that the last call returned; both must give the same output (up to an encoder's context
window).

Shapes: B batch, L sequence, D features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from amago.nets.registry import Registry


class TrajEncoder(nn.Module, ABC):
    """A causal sequence model. Subclasses override `forward` and `emb_dim`, and the hidden-state methods if
    they remember anything.

    Args:
        tstep_dim: width of the timestep vectors that come in.
        max_seq_len: longest sequence in training, and the context window in rollouts where there is one.

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
        """The hidden state at the start of `batch_size` episodes; None if a call without one is the start."""
        return None

    def reset_hidden_state(self, hidden_state: Any, dones: Any) -> Any:
        """The hidden state after the rows with True in `dones` (B,) have started a new episode."""
        return hidden_state

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
            hidden_state: what the last call returned, None at the start of a sequence.
            log_dict: collects metrics if given.
        """


def rows_that_ended(dones: Any, num_rows: int, device: torch.device) -> Tensor:
    """`dones`, an array, tensor or list with one truth value per row, as a bool tensor (B,) on `device`.

    Raises:
        ValueError: for another number of rows.
    """
    ended = torch.as_tensor(dones, dtype=torch.bool, device=device).reshape(-1)
    if len(ended) != num_rows:
        raise ValueError(f"dones must hold one bool for each of {num_rows} rows, got {len(ended)}")
    return ended


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
