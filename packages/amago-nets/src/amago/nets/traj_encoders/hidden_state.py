"""Hidden states of any trajectory encoder: reset per row, moved, saved and restored.

A hidden state is a tensor or a nest of tensors: tuples, lists and dicts with names as keys, dataclasses, named
tuples, and objects with the two methods of `TensorHolder`. None and plain numbers may be part of it. An encoder of
your own needs no code for any of this as long as its hidden state is made of these.

    hidden_state = move_hidden_state(hidden_state, "cuda")
    safetensors.torch.save_file(hidden_state_dict(hidden_state), "memory.safetensors")

    tensors = safetensors.torch.load_file("memory.safetensors")
    hidden_state = load_hidden_state(tensors, like=encoder.init_hidden_state(rows, "cpu"))

Shapes: B rows, one per environment that is acted in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class TensorHolder(Protocol):
    """An object of a class of its own that holds tensors or nests of them."""

    def hidden_tensors(self) -> dict[str, Any]:
        """Everything that it remembers, by name."""

    def with_hidden_tensors(self, tensors: dict[str, Any]) -> Any:
        """An object of the same class that remembers `tensors` instead."""


def _fields(hidden_state: Any) -> dict[str, Any] | None:
    """The parts of an object that is put together from named parts, None for anything else."""
    if isinstance(hidden_state, TensorHolder):
        return hidden_state.hidden_tensors()
    if dataclasses.is_dataclass(hidden_state) and not isinstance(hidden_state, type):
        return {f.name: getattr(hidden_state, f.name) for f in dataclasses.fields(hidden_state) if f.init}
    if isinstance(hidden_state, tuple) and hasattr(hidden_state, "_fields"):
        return dict(zip(hidden_state._fields, hidden_state, strict=True))
    return None


def _with_fields(hidden_state: Any, fields: dict[str, Any]) -> Any:
    """An object like `hidden_state` of other parts."""
    if isinstance(hidden_state, TensorHolder):
        return hidden_state.with_hidden_tensors(fields)
    if isinstance(hidden_state, tuple):
        return type(hidden_state)(**fields)
    return dataclasses.replace(hidden_state, **fields)


def _unknown(hidden_state: Any) -> TypeError:
    return TypeError(
        f"a hidden state must be made of tensors, tuples, lists, dicts and dataclasses, got "
        f"{type(hidden_state).__name__}; give the class the methods hidden_tensors() and "
        "with_hidden_tensors(tensors)"
    )


def map_hidden_state(function: Callable[[Tensor], Tensor], hidden_state: Any) -> Any:
    """The same hidden state with `function` applied to each of its tensors.

    Raises:
        TypeError: if it holds something that is neither a tensor nor a container of tensors.
    """
    if isinstance(hidden_state, Tensor):
        return function(hidden_state)
    if hidden_state is None or isinstance(hidden_state, bool | int | float):
        return hidden_state
    if (fields := _fields(hidden_state)) is not None:
        return _with_fields(
            hidden_state, {name: map_hidden_state(function, part) for name, part in fields.items()}
        )
    if isinstance(hidden_state, Mapping):
        return {name: map_hidden_state(function, part) for name, part in hidden_state.items()}
    if isinstance(hidden_state, tuple | list):
        return type(hidden_state)(map_hidden_state(function, part) for part in hidden_state)
    raise _unknown(hidden_state)


def move_hidden_state(hidden_state: Any, device: torch.device | str) -> Any:
    """The hidden state on another device, dtypes kept."""
    return map_hidden_state(lambda tensor: tensor.to(device), hidden_state)


def rows_that_ended(dones: Any, num_rows: int, device: torch.device) -> Tensor:
    """`dones`, an array, tensor or list with one truth value per row, as a bool tensor (B,) on `device`.

    Raises:
        ValueError: for another number of rows.
    """
    ended = torch.as_tensor(dones, dtype=torch.bool, device=device).reshape(-1)
    if len(ended) != num_rows:
        raise ValueError(f"dones must hold one bool for each of {num_rows} rows, got {len(ended)}")
    return ended


def reset_rows(hidden_state: Any, dones: Any, batch_dim: int = 0) -> Any:
    """The hidden state with the rows that ended set to zero in each of its tensors.

    Args:
        hidden_state: any; it is not changed.
        dones: an array, tensor or list with one bool per row.
        batch_dim: the axis of every tensor along which the rows lie.

    Raises:
        ValueError: if a tensor has another number of rows than `dones`.
    """

    def reset(tensor: Tensor) -> Tensor:
        if tensor.dim() <= batch_dim:
            raise ValueError(
                f"a hidden state of shape {tuple(tensor.shape)} has no rows along axis {batch_dim}"
            )
        shape = [1] * tensor.dim()
        shape[batch_dim] = -1
        ended = rows_that_ended(dones, tensor.shape[batch_dim], tensor.device)
        return tensor.masked_fill(ended.view(shape), 0)

    return map_hidden_state(reset, hidden_state)


# Names of saved tensors are paths: the parts of a tuple are called (0), (1), those of a list [0], [1], those of a
# dict by their keys and those of an object .name. What is no tensor stands as a small one whose name ends so:
_TENSOR, _NONE = "=tensor", "=none"
_NUMBERS: dict[str, Callable[[Any], Any]] = {"=bool": bool, "=int": int, "=float": float}
_EMPTY: dict[str, type] = {"=()": tuple, "=[]": list, "={}": dict}
_RESERVED = ("(", "[", ".", "=")


def hidden_state_dict(hidden_state: Any) -> dict[str, Tensor]:
    """All tensors of a hidden state by name, ready to be saved as safetensors.

    They are copies: later steps of the rollout do not change them.

    Raises:
        TypeError: if it holds something that is neither a tensor nor a container of tensors, or a dict whose keys
            cannot be part of a name.
    """
    if isinstance(hidden_state, Tensor):
        return {_TENSOR: hidden_state.detach().clone(memory_format=torch.contiguous_format)}
    if hidden_state is None:
        return {_NONE: torch.empty(0)}
    for name, kind in _NUMBERS.items():
        if type(hidden_state) is kind:
            wide = torch.float64 if kind is float else torch.int64
            return {name: torch.tensor(hidden_state, dtype=wide)}
    tensors = {}
    for name, part in _named_parts(hidden_state).items():
        for path, tensor in hidden_state_dict(part).items():
            tensors[name if path == _TENSOR else f"{name}/{path}"] = tensor
    if not tensors:
        empty = next(name for name, kind in _EMPTY.items() if isinstance(hidden_state, kind))
        tensors[empty] = torch.empty(0)
    return tensors


def _named_parts(hidden_state: Any) -> dict[str, Any]:
    """The parts of a container by the names that they have in paths."""
    if (fields := _fields(hidden_state)) is not None:
        return {f".{name}": part for name, part in fields.items()}
    if isinstance(hidden_state, Mapping):
        for key in hidden_state:
            if not isinstance(key, str) or not key or key.startswith(_RESERVED) or "/" in key:
                raise TypeError(
                    f"keys of a hidden state must be names without '/' that do not begin with one of "
                    f"{' '.join(_RESERVED)}, got {key!r}"
                )
        return dict(hidden_state)
    if isinstance(hidden_state, tuple):
        return {f"({i})": part for i, part in enumerate(hidden_state)}
    if isinstance(hidden_state, list):
        return {f"[{i}]": part for i, part in enumerate(hidden_state)}
    raise _unknown(hidden_state)


def load_hidden_state(
    tensors: Mapping[str, Tensor], like: Any = None, device: torch.device | str | None = None
) -> Any:
    """The hidden state that `hidden_state_dict` made into `tensors`.

    Args:
        tensors: by name, as they were saved.
        like: a hidden state of the same kind, from `init_hidden_state` of the same encoder. Where it says
            something, shapes and dtypes must be the same. Needed if the hidden state is an object of a class of
            its own, as a Transformer's and a Mamba's; None will do for nests of tensors.
        device: where to put it, by default where `like` is, or where `tensors` are.

    Raises:
        ValueError: if the names are none of `hidden_state_dict`, or do not fit `like`.
    """
    return _load(dict(tensors), like, device, "")


def _load(tensors: dict[str, Tensor], like: Any, device: torch.device | str | None, path: str) -> Any:
    """The part of the hidden state at `path`, from its tensors by the rest of their paths."""
    if len(tensors) == 1:
        name, tensor = next(iter(tensors.items()))
        if name in ("", _TENSOR):
            return _load_tensor(tensor, like, device, path)
        if name == _NONE:
            return None
        if name in _NUMBERS:
            return _NUMBERS[name](tensor.item())
        if name in _EMPTY:
            return _EMPTY[name]()
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = tensor
    old = {} if like is None else _named_parts(like)
    if (like is not None and old.keys() != groups.keys()) or not groups:
        raise ValueError(
            f"{path or 'the hidden state'} has the parts {sorted(groups)}, expected {sorted(old)}: was it saved "
            "from an encoder of another kind or number of layers?"
        )
    parts = {
        name: _load(part, old.get(name), device, f"{path}/{name}".lstrip("/"))
        for name, part in groups.items()
    }
    return _put_together(parts, like, path)


def _load_tensor(tensor: Tensor, like: Any, device: torch.device | str | None, path: str) -> Tensor:
    """A copy of a tensor that fits `like`, on the device."""
    if isinstance(like, Tensor):
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"{path or 'the hidden state'} is {tensor.dtype} {tuple(tensor.shape)}, expected {like.dtype} "
                f"{tuple(like.shape)}: give `like` the rows, window and precision that were saved"
            )
        device = like.device if device is None else device
    elif like is not None:
        raise ValueError(f"{path or 'the hidden state'} is a tensor, expected {type(like).__name__}")
    return tensor.to(device, copy=True)


def _put_together(parts: dict[str, Any], like: Any, path: str) -> Any:
    """A container of loaded parts; the first character of their names tells which kind."""
    kinds = {name[:1] for name in parts}
    if kinds == {"."}:
        if like is None:
            raise ValueError(
                f"{path or 'the hidden state'} is an object with the parts {sorted(parts)}: give "
                "like=encoder.init_hidden_state(rows, device) to tell its class"
            )
        return _with_fields(like, {name[1:]: part for name, part in parts.items()})
    if kinds in ({"("}, {"["}):
        opening = kinds.pop()
        closing = {"(": ")", "[": "]"}[opening]
        names = [f"{opening}{i}{closing}" for i in range(len(parts))]
        if set(names) == set(parts):
            ordered = [parts[name] for name in names]
            return tuple(ordered) if opening == "(" else ordered
    elif not kinds & set(_RESERVED) and "" not in parts:
        return parts
    raise ValueError(f"{sorted(parts)} are no names that hidden_state_dict gives")
