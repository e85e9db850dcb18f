"""Reads weights of policies that were saved elsewhere, by this library or by others with the same names.

What people have is a `policy.pt` with a plain state dict, but also one that is wrapped in a larger checkpoint,
one whose names carry the prefix of a data-parallel or compiled module, or a `.safetensors` file. All of them end
up as the names that our agents use. Nothing in a file is ever run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from amago.experiment.checkpointer import what_is_there

# Under which a checkpoint of several things keeps its weights, and what wrappers put before every name.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "policy", "agent")
_PREFIXES = ("module.", "_orig_mod.")
_COPY = "maximized_critics."


@dataclass(frozen=True, kw_only=True)
class SavedPolicy:
    """The weights in a file under the names of our agents.

    Attributes:
        weights: tensors by name.
        copies: names of the second copy of the critics that were left out; our agents need none.
        unwrapped: keys and prefixes that stood around the weights, outermost first.
    """

    weights: dict[str, Tensor]
    copies: tuple[str, ...] = ()
    unwrapped: tuple[str, ...] = ()

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights have, running statistics and targets included."""
        return sum(tensor.numel() for tensor in self.weights.values())

    @property
    def not_finite(self) -> list[str]:
        """Names of tensors that hold an infinite number or NaN."""
        return [
            name
            for name, tensor in self.weights.items()
            if tensor.is_floating_point() and not bool(tensor.isfinite().all())
        ]


def read_saved_policy(path: Path, device: torch.device | str = "cpu") -> SavedPolicy:
    """The policy in a file.

    Args:
        path: a file written by `torch.save`, or one that ends in ".safetensors".
        device: where the tensors go.

    Raises:
        FileNotFoundError: there is no such file; says what is there instead.
        ValueError: it is of another format, holds objects whose loading would run code, or no weights.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there are no policy weights at {path}{what_is_there(path)}")
    content = _read(path, device)
    unwrapped: list[str] = []
    while not _is_weights(content):
        inner = [
            key for key in _WRAPPERS if isinstance(content, Mapping) and isinstance(content.get(key), Mapping)
        ]
        if len(unwrapped) > len(_WRAPPERS):  # a dictionary may even hold itself
            raise ValueError(f"{path} holds no weights, only dictionaries in dictionaries: {unwrapped}")
        if not inner:
            raise ValueError(f"{path} holds no weights: {_what(content)}, where tensors by name are expected")
        unwrapped.append(inner[0])
        content = content[inner[0]]
    weights = dict(content)
    _check_plain(path, weights)
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in weights)), None):
        unwrapped.append(prefix)
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    copies = tuple(name for name in weights if name.startswith(_COPY))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(_COPY)}
    return SavedPolicy(weights=kept, copies=copies, unwrapped=tuple(unwrapped))


def _read(path: Path, device: torch.device | str) -> Any:
    if path.suffix == ".safetensors":
        try:
            return load_file(path, device=str(device))
        except SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        reason = _reason(error)
        if "global" not in reason.lower():
            raise ValueError(f"{path} is no file of torch.save: {reason}") from error
        raise ValueError(
            f"{path} is refused: it holds more than tensors, and loading the rest could run code ({reason}). "
            "Where the agent can be built, save its weights alone with torch.save(agent.state_dict(), path)."
        ) from error
    except Exception as error:
        # An unpickler can stumble over anything in bytes that are no pickle.
        raise ValueError(f"{path} is no file of torch.save, or is damaged: {error!r}") from error


def _reason(error: pickle.UnpicklingError) -> str:
    """What torch says against the file, without what it goes on to recommend, which would run the code."""
    _, told, reason = str(error).partition("WeightsUnpickler error:")
    if told:
        return reason.strip().partition("\n")[0]
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if "unsupported GLOBAL" in line), lines[0])


def _check_plain(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError for tensors that are no arrays of real numbers as they stand in the file."""
    for name, tensor in weights.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            kind = f"a {tensor.dtype} of layout {tensor.layout}"
        elif tensor.is_meta:
            kind = "without numbers"
        elif tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            kind = f"of shape {tuple(tensor.shape)}, more numbers than the file has for it"
        else:
            continue
        raise ValueError(
            f"{path} is refused: {name!r} is {kind}, where dense real numbers are expected. Save the weights of "
            "the agent itself: torch.save(agent.state_dict(), path)"
        )


def _is_weights(content: Any) -> bool:
    """Whether this is a state dict: names to tensors and nothing else."""
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items())
    )


def _what(content: Any) -> str:
    if isinstance(content, Mapping):
        shown = ", ".join(map(str, list(content)[:5])) or "nothing"
        return f"a dictionary of {shown}{', ...' if len(content) > 5 else ''}"
    return f"a {type(content).__name__}"
