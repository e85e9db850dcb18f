"""Base class of trajectory encoders, their hidden states, and their registry.

In training, an encoder maps a whole sequence. In a rollout it is called with one timestep at a time and the hidden
state that the last call returned. Both must give the same output (up to the encoder's context window).

A hidden state is None, a tensor, or a nest of tuples, named tuples, lists and dicts of tensors. In every
tensor the batch is on the same axis, `TrajEncoder.hidden_batch_axis`. Numbers that all rows share are allowed.

Shapes: B batch, L sequence, D features.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from amago.nets.arguments import Size, check_arguments
from amago.nets.registry import Registry


def done_rows(dones: Any, num_rows: int, device: torch.device) -> Tensor:
    """`dones`, an array, tensor or list of one bool per row, as a bool tensor (B,) on `device`.

    Raises:
        ValueError: for another number of rows.
    """
    rows = torch.as_tensor(dones, dtype=torch.bool, device=device).reshape(-1)
    if len(rows) != num_rows:
        raise ValueError(f"dones must hold one bool for each of {num_rows} rows, got {len(rows)}")
    return rows


def reset_rows(hidden_state: Any, dones: Any, batch_axis: int = 0) -> Any:
    """A copy of a hidden state in which the rows with True in `dones` (B,) are zero in every tensor.

    Args:
        hidden_state: None, a tensor, or a nest of tuples, lists and dicts of tensors.
        dones: an array, tensor or list of one bool per row.
        batch_axis: the axis of the batch in every tensor.

    Raises:
        TypeError: if the hidden state holds an object of another class.
        ValueError: if the size of a tensor on `batch_axis` is not the length of `dones`.
    """
    num_rows = len(dones)

    def reset(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, bool | int | float):
            return leaf
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"a hidden state must be made of tensors, tuples, lists and dicts, got {type(leaf).__name__}; "
                "for others override reset_hidden_state"
            )
        found = leaf.shape[batch_axis] if leaf.dim() > batch_axis else 0
        if found != num_rows:
            raise ValueError(
                f"dones must hold one bool for each of {found} rows, got {num_rows}: the hidden state has a "
                f"tensor of shape {tuple(leaf.shape)}, whose batch is taken to be on axis {batch_axis}. If it is "
                "on another, set the class attribute hidden_batch_axis of the trajectory encoder to that"
            )
        rows = done_rows(dones, num_rows, leaf.device)
        return leaf.masked_fill(rows.view(-1, *(1,) * (leaf.dim() - batch_axis - 1)), 0)

    return tree_map(reset, hidden_state)


class TrajEncoder(nn.Module, ABC):
    """A causal sequence model.

    Subclasses override `forward` and `emb_dim`, `init_hidden_state` if the initial hidden state is not None, and
    `reset_hidden_state` if the initial hidden state is not zero.

    Args:
        tstep_dim: width of the input timestep vectors.
        max_seq_len: longest sequence in training; the context window of encoders that have one.

    Attributes:
        hidden_batch_axis: the axis of the batch in every tensor of the hidden state.

    Raises:
        ValueError: if an argument is not positive.
    """

    hidden_batch_axis: ClassVar[int] = 0

    @check_arguments
    def __init__(self, tstep_dim: Size, max_seq_len: Size) -> None:
        super().__init__()
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

        The default sets these rows to zero in every tensor, along `hidden_batch_axis`.

        Raises:
            TypeError: if the hidden state holds an object that is not a tensor, tuple, list or dict.
            ValueError: if the batch size of a tensor is not the length of `dones`.
        """
        return reset_rows(hidden_state, dones, self.hidden_batch_axis)

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
            hidden_state: the hidden state returned by the previous call; None at the start of a sequence.
            log_dict: dict to which metrics are added, if given.
        """


_REGISTRY: Registry[TrajEncoder] = Registry("trajectory encoder")
_REGISTRY.alias("gru", "rnn")

register_traj_encoder = _REGISTRY.register
"""Class decorator that registers a trajectory encoder by name; see `Registry.register`."""

get_traj_encoder_cls = _REGISTRY.get
"""The class registered by a name; see `Registry.get`."""

list_registered_traj_encoders = _REGISTRY.names
"""All names, sorted."""
