"""Specs of action and observation spaces: kinds, sizes, dtypes and bounds, without gymnasium.

`as_spec` reads any gymnasium-like space by its class name and attributes, so that amago-nets needs no environment
library:

    as_spec({"position": (3,), "image": (64, 64, 3)})   # an ObsSpec from plain shapes
    as_spec(gymnasium.spaces.Discrete(5))               # an ActionSpec of width 5
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Literal

ActionKind = Literal["discrete", "multidiscrete", "multibinary", "box"]
_KINDS = ("discrete", "multidiscrete", "multibinary", "box")


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """The kind and sizes of an action space, which determine the action representation.

    Args:
        kind: "discrete" (one choice), "multidiscrete" (several), "multibinary" (bits) or "box" (numbers).
        sizes: (n,) choices for discrete; the number of choices of each component for multidiscrete; (bits,)
            for multibinary; the shape for box.
        low: lower bound of a box in the environment's units; None for [-1, 1].
        high: upper bound of a box in the environment's units; None for [-1, 1].
    """

    kind: ActionKind
    sizes: tuple[int, ...]
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {self.kind!r}")
        if any(size < 1 for size in self.sizes) or (self.kind != "box" and not self.sizes):
            raise ValueError(f"sizes must be positive, got {self.sizes!r}")

    @property
    def dim(self) -> int:
        """Width A of the representation: one-hots are concatenated, a box is flattened."""
        return sum(self.sizes) if self.kind == "multidiscrete" else prod(self.sizes)

    @property
    def is_discrete(self) -> bool:
        """Whether an action is a single choice, represented by one one-hot vector."""
        return self.kind == "discrete"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an observation.

    Args:
        shape: its shape without batch and time.
        dtype: the name of its dtype.
        low: lower bound of all elements; None if unknown or infinite.
        high: upper bound of all elements; None if unknown or infinite.

    Raises:
        ValueError: if `high` is below `low`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.high < self.low:
            raise ValueError(f"high must be at least low={self.low!r}, got {self.high!r}")

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer (not bool)."""
        return self.dtype.startswith(("int", "uint"))

    @property
    def dim(self) -> int:
        """Number of elements, 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ObsSpec(Mapping[str, ArraySpec]):
    """The arrays of a dict observation by key, in the order of the space."""

    arrays: dict[str, ArraySpec]

    def __getitem__(self, key: str) -> ArraySpec:
        return self.arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def _ints(values: Any) -> tuple[int, ...]:
    """Sizes as plain ints, from a number or any nesting of arrays."""
    if hasattr(values, "ravel"):
        values = values.ravel().tolist()
    return tuple(int(v) for v in values) if isinstance(values, (tuple, list)) else (int(values),)


def _action_spec(space: Any) -> ActionSpec | None:
    """The spec of a Discrete, MultiDiscrete, MultiBinary or Box space, by class name; None for other spaces."""
    names = {cls.__name__ for cls in type(space).__mro__}
    if "Discrete" in names:
        return ActionSpec("discrete", _ints(space.n))
    if "MultiDiscrete" in names:
        return ActionSpec("multidiscrete", _ints(space.nvec))
    if "MultiBinary" in names:
        return ActionSpec("multibinary", (prod(_ints(space.n)),))
    if "Box" in names:
        return ActionSpec("box", tuple(space.shape), float(space.low.min()), float(space.high.max()))
    return None


def _bounds(space: Any) -> tuple[float | None, float | None]:
    """The minimum of `low` and the maximum of `high` of a space, each None if infinite or missing."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return None, None
    least, greatest = float(low.min()), float(high.max())
    return least if isfinite(least) else None, greatest if isfinite(greatest) else None


def as_array_spec(value: Any) -> ArraySpec:
    """One array of an observation from a spec, a plain shape or a space (Discrete and MultiDiscrete as one-hots).

    Raises:
        TypeError: if the shape cannot be determined.
    """
    if isinstance(value, ArraySpec):
        return value
    if isinstance(value, ActionSpec):
        return ArraySpec((value.dim,))
    if isinstance(value, (tuple, list)):
        return ArraySpec(_ints(value))
    action = _action_spec(value)
    if action is not None and action.kind in ("discrete", "multidiscrete"):
        return ArraySpec((action.dim,), low=0.0, high=1.0)
    # Composite spaces have the attribute too, but it is None.
    if getattr(value, "shape", None) is not None:
        low, high = (0.0, 1.0) if action is not None and action.kind == "multibinary" else _bounds(value)
        return ArraySpec(tuple(value.shape), str(getattr(value, "dtype", "float32")), low, high)
    raise TypeError(
        f"cannot determine the shape of {value!r}: pass a shape like (3,), an ArraySpec or a space"
    )


def as_obs_spec(space: Any) -> ObsSpec:
    """The spec of observations: of a Dict space, a mapping of key to shape, ArraySpec or space, or one array.

    A space that is not a mapping becomes the single key "observation".

    Raises:
        TypeError: if a shape cannot be determined.
    """
    if isinstance(space, ObsSpec):
        return space
    entries = getattr(space, "spaces", space)
    if isinstance(entries, Mapping):
        return ObsSpec({str(key): as_array_spec(value) for key, value in entries.items()})
    return ObsSpec({"observation": as_array_spec(space)})


def as_action_spec(space: Any) -> ActionSpec:
    """The spec of an action space (Discrete, MultiDiscrete, MultiBinary or Box, or already an ActionSpec).

    Raises:
        TypeError: for any other space.
    """
    if isinstance(space, ActionSpec):
        return space
    spec = _action_spec(space)
    if spec is None:
        raise TypeError(
            f"unsupported action space, action_space={space!r}: action spaces are Discrete, MultiDiscrete, "
            "MultiBinary or Box (or an amago.nets.specs.ActionSpec)"
        )
    return spec


def as_spec(space: Any) -> ActionSpec | ObsSpec:
    """`as_obs_spec` for dict-like spaces, `as_action_spec` for all others."""
    if isinstance(space, (ObsSpec, Mapping)) or isinstance(getattr(space, "spaces", None), Mapping):
        return as_obs_spec(space)
    return as_action_spec(space)
