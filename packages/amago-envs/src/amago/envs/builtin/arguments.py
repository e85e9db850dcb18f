"""The check that the arguments of all builtin environments share."""

import operator
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex, least: int, why: str = "") -> int:
    """`value` as an int of at least `least`.

    Raises:
        TypeError: if it is no whole number.
        ValueError: if it is too small; `why` says what it must have room for.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}{f' ({why})' if why else ''}, got {number}")
    return number
