"""Reads the weights of saved policies, and loads them into an agent of the same architecture.

A file of `torch.save` holds the agent's state dict, alone or inside a larger checkpoint; a `.safetensors` file
holds it alone. Files are read with `weights_only=True`, which runs no code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

# Keys of larger checkpoints that hold the state dict, and what DataParallel and torch.compile put before names.
_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "policy", "agent")
# Entries of optimizer states with the shape of their parameter.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
_PREFIXES = ("module.", "_orig_mod.")
_EXTRA_STATE = (
    "_extra_state"  # end of the names of what `Module.get_extra_state` returns, which may be no tensor
)


def read_tensors(path: Path, device: torch.device | str) -> Any:
    """The content of a file of `torch.save`, or of a `.safetensors` file, with tensors on `device`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or contains more than tensors, so that loading it could run code.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:  # files of safetensors, and of torch before 1.6, have no checksums
        check_tensors(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path, device=str(device))
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        # Damaged bytes raise anything; torch's own message recommends loading with code execution.
        raise ValueError(
            f"{path} cannot be read as tensors: it is damaged, or holds other objects, whose loading could run "
            "code. Save the weights alone with torch.save(agent.state_dict(), path)."
        ) from error


def check_tensors(path: Path) -> None:
    """Compares a file of `torch.save` with the checksums in it, which `torch.load` does not do.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            if not any(member.CRC for member in archive.infolist()):
                return  # written with torch.serialization.set_crc32_options(False)
            damaged = archive.testzip()
    except Exception as error:  # damaged bytes raise anything
        raise ValueError(f"{path} is damaged: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the checksum of {damaged!r} differs")


def read_saved_policy(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state dict in a file, without wrappers around it and prefixes of its names.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds other objects than tensors, or no state dict.
    """
    content = read_tensors(path, device)
    for _ in _STATE_DICT_KEYS:
        key = next((key for key in _STATE_DICT_KEYS if _has_mapping(content, key)), None)
        content = content if key is None else content[key]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) or str(name).endswith(_EXTRA_STATE) for name, value in content.items()
    ):
        found = f"the keys {list(content)[:5]}" if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"{path} holds no state dict, a dictionary of tensors by name, but {found}")
    weights = {str(name): value for name, value in content.items()}
    while prefix := next((p for p in _PREFIXES if weights and all(n.startswith(p) for n in weights)), None):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _has_mapping(content: Any, key: str) -> bool:
    return isinstance(content, Mapping) and isinstance(content.get(key), Mapping)


def load_saved_policy(agent: nn.Module, weights: Mapping[str, Any], source: object) -> None:
    """Loads `weights` into `agent`.

    Args:
        source: where the weights are from, for the error.

    Raises:
        ValueError: names or shapes differ; lists them.
    """
    try:
        agent.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the policy in {source} has other parameters than the run's agent. Give the run the environment, the "
            f"encoders and the gin settings of the run that saved the policy (see its config.txt). {error}"
        ) from error


def check_saved_optimizer(optimizer: Optimizer, state: Mapping[str, Any], source: object) -> None:
    """Checks that a state fits an optimizer; a fused one would read moments of another shape beyond their end.

    Args:
        source: where the state is from, for the error.

    Raises:
        ValueError: the number of parameters, or the shape of a moment, differs.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        indices = [index for group in state["param_groups"] for index in group["params"]]
        moments = [state["state"].get(index, {}) for index in indices]
        problems = []
        if len(indices) != len(parameters):
            problems.append(f"{len(indices)} instead of {len(parameters)} parameters")
        for index, parameter, saved in zip(indices, parameters, moments, strict=False):
            for name, value in saved.items():
                shape = tuple(parameter.shape) if name in _MOMENTS else () if name == "step" else None
                if shape is not None and not _is_dense(value, shape):
                    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    problems.append(f"{name!r} of parameter {index} is {found} instead of {shape}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source} holds no state of an optimizer: {error!r}") from error
    if problems:
        raise ValueError(
            f"the optimizer state in {source} does not fit: {'; '.join(problems[:5])}. Give the run the encoders, "
            "the agent and the gin settings of the run that saved it, or load only the weights"
        )


def _is_dense(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an ordinary tensor of floats with this shape; any number will do for an empty one."""
    if not isinstance(value, Tensor):
        return not shape and isinstance(value, (int, float))
    plain = value.layout == torch.strided and value.is_floating_point()
    return plain and (tuple(value.shape) == shape or (not shape and value.numel() == 1))
