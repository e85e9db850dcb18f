"""Checks of constructors' arguments against their annotations.

`check_arguments` decorates an `__init__`, `check_fields` checks the fields of a dataclass. Ranges are declared
with `annotated-types`:

    @check_arguments
    def __init__(self, width: Annotated[int, Ge(1)], dropout: Probability = 0.0, norm: str | None = None) -> None:

| annotation | accepted |
|---|---|
| bool | Python's and numpy's booleans |
| int, float | Python's and numpy's numbers; no booleans, tensors or NaN; infinity only if MAY_BE_INFINITE |
| str, None, Literal, other classes | instances |
| Sequence, list, tuple, Mapping, dict | containers whose items are accepted; lists, tuples and arrays are alike |
| type[X], Callable[..., X] | subclasses of X and other callables, but no instance of X |

Everything else is accepted: it is checked where it is used.

amago-nets and amago-envs contain identical copies of this file, so that neither package depends on the other.
"""

import builtins
import functools
import inspect
import numbers
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MinLen, MultipleOf

from .registry import did_you_mean  # relative, so that both copies are equal

MAY_BE_INFINITE = "may be infinite"
"""Metadata of a number that may be infinite."""

MAX_SIZE = 2**24
"""Largest size: a batch or layer of more is a slip that would end, much later, in a lack of memory."""

Size = Annotated[int, Ge(1), Le(MAX_SIZE)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Probability = Annotated[float, Ge(0), Le(1)]
Name = Annotated[str, MinLen(1)]

_BOUNDS: dict[type[Any], tuple[Callable[[Any, Any], bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "above"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "below"),
}

Init = TypeVar("Init", bound=Callable[..., None])
Failure = tuple[type[Exception], str]  # the error to raise, and what would be accepted


def check_arguments(init: Init) -> Init:
    """Decorator of `__init__` that checks the arguments, but not the defaults, against the annotations.

    The constructor raises TypeError for a value of another type and ValueError for one out of range; the message
    names class, argument and value, and what would be accepted.
    """
    signature = inspect.signature(init)
    owner = init.__qualname__.rpartition(".")[0]
    hints = functools.cache(lambda: _annotations(init))

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            given = {}  # `init` raises Python's own error of a missing or an unknown argument
        for name, value in given.items():
            kind = signature.parameters[name].kind
            if name in hints() and kind not in (
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            ):
                check_value(owner, name, value, hints()[name])
        init(self, *args, **kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined] # for gin, which does not unwrap functions
    return checked  # type: ignore[return-value]


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass against their annotations; raises as `check_arguments`."""
    hints: dict[str, Any] = {}
    for cls in reversed(type(instance).__mro__):
        if "__dataclass_fields__" in vars(cls):
            hints |= _annotations(cls)
    for field in fields(instance):
        check_value(type(instance).__name__, field.name, getattr(instance, field.name), hints[field.name])


def check_value(owner: str, name: str, value: Any, hint: Any) -> None:
    """Checks one value against an annotation.

    Raises:
        TypeError: if `value` has another type.
        ValueError: if `value` is out of range. Both name `owner`, `name` and `value`.
    """
    failure = _failure(value, hint)
    if failure is not None:
        error, accepted = failure
        shown = repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        similar = did_you_mean(value, _choices(hint)) if isinstance(value, str) else ""
        raise error(f"{owner}: {name} must be {accepted}, got {shown}{similar and '.' + similar}")


class _Names(dict[str, Any]):
    """The names of a module; those that only type checkers import are Any."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        return getattr(builtins, name, Any)


def _annotations(source: Any) -> dict[str, Any]:
    """The evaluated annotations of a function or class."""
    names = _Names(vars(sys.modules[source.__module__]))
    return inspect.get_annotations(source, locals=names, eval_str=True)


def _failure(value: Any, hint: Any) -> Failure | None:
    """What is wrong with `value`; None if it is accepted."""
    if hint is Any:
        return None
    hint, limits = _without_limits(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        failures = [_failure(value, member) for member in inner]
        wrong = [failure for failure in failures if failure is not None]
        if len(wrong) < len(failures):
            return None
        error = ValueError if any(failure[0] is ValueError for failure in wrong) else TypeError
        return error, " or ".join(dict.fromkeys(words for _, words in wrong))
    if origin is Literal:
        is_choice = any(type(value) is type(choice) and value == choice for choice in inner)
        choices = ", ".join(map(repr, inner))
        return None if is_choice else (ValueError, f"one of {choices}" if len(inner) > 1 else choices)
    if hint is bool:
        return None if _is_bool(value) else (TypeError, "True or False")
    if hint in (int, float):
        return _number_failure(value, hint, limits)
    if origin in (type, Callable):
        return _factory_failure(value, inner[-1])
    if origin in (Sequence, list, tuple):
        return _sequence_failure(value, inner, fixed=origin is tuple and inner[-1] is not ..., limits=limits)
    if origin in (Mapping, dict):
        if not isinstance(value, Mapping):
            return TypeError, "a mapping"
        for part, of in ((list(value), inner[0]), (list(value.values()), inner[1])):
            if failure := _sequence_failure(part, (of,), fixed=False, limits=()):
                return failure
        return None
    if hint is None or hint is type(None):
        return None if value is None else (TypeError, "None")
    if origin is os.PathLike:
        return None if isinstance(value, os.PathLike) else (TypeError, "a path")
    if origin is None and isinstance(hint, type) and not getattr(hint, "_is_protocol", False):
        if not isinstance(value, hint):
            return TypeError, "a string" if hint is str else f"of type {hint.__name__}"
        if isinstance(value, str) and _is_too_short(value, limits):
            return ValueError, "not empty"
    return None


def _number_failure(value: Any, hint: Any, limits: Sequence[Any]) -> Failure | None:
    if _is_bool(value) or not isinstance(value, numbers.Integral if hint is int else numbers.Real):
        return TypeError, "a whole number" if hint is int else "a number"
    for limit in limits:
        if type(limit) in _BOUNDS:
            fits, words = _BOUNDS[type(limit)]
            (bound,) = astuple(limit)
            if not fits(value, bound):  # nor does NaN
                return ValueError, f"{words} {bound}"
    if value != value:
        return ValueError, "a number"
    if value in (float("inf"), float("-inf")):
        return None if MAY_BE_INFINITE in limits else (ValueError, "finite")
    if any(isinstance(limit, MultipleOf) and value % limit.multiple_of for limit in limits):
        return ValueError, "a whole number"
    return None


def _factory_failure(value: Any, product: Any) -> Failure | None:
    """Checks a class of `product` or another callable."""
    product = get_origin(product) or product
    if product is Any or not isinstance(product, type) or getattr(product, "_is_protocol", False):
        return None if callable(value) else (TypeError, "a function or class")
    if isinstance(value, type):
        is_factory = issubclass(value, product)
    else:
        is_factory = callable(value) and not isinstance(value, product)
    name = product.__name__
    words = f"a function that returns a {name}, or a subclass of {name} (not an instance)"
    return None if is_factory else (TypeError, words)


def _sequence_failure(
    value: Any, inner: Sequence[Any], *, fixed: bool, limits: Sequence[Any]
) -> Failure | None:
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return TypeError, "a list or tuple"
    if fixed and len(value) != len(inner):
        return ValueError, f"{len(inner)} values"
    if _is_too_short(value, limits):
        return ValueError, "not empty"
    for item, hint in zip(value, inner if fixed else [inner[0]] * len(value), strict=True):
        if failure := _failure(item, hint):
            return failure[0], f"a list or tuple in which each item is {failure[1]}"
    return None


def _is_too_short(value: Sequence[Any], limits: Sequence[Any]) -> bool:
    return any(isinstance(limit, MinLen) and len(value) < limit.min_length for limit in limits)


def _is_bool(value: Any) -> bool:
    is_numpy = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    return is_numpy or isinstance(value, bool)


def _without_limits(hint: Any) -> tuple[Any, list[Any]]:
    """The annotation without its metadata, and those one by one."""
    if get_origin(hint) is not Annotated:
        return hint, []
    limits: list[Any] = []
    for limit in hint.__metadata__:
        limits.extend(limit if isinstance(limit, GroupedMetadata) else [limit])
    return hint.__origin__, limits


def _choices(hint: Any) -> Iterator[str]:
    """All strings of the Literals of an annotation."""
    hint, _ = _without_limits(hint)
    for inner in get_args(hint):
        if get_origin(hint) is Literal:
            yield str(inner)
        else:
            yield from _choices(inner)
