"""What public functions demand of their arguments, whatever the operation."""

from __future__ import annotations

from torch import Tensor


def require_tensors(**arguments: object) -> None:
    """Raises TypeError for an argument that is no tensor, by its name."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
