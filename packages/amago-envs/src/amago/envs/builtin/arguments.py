"""Validation of the builtin environments' arguments."""

import operator
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex, least: int, why: str = "") -> int:
    """Converts `value` to an int and checks that it is at least `least`.

    Raises:
        TypeError: if `value` is not an integer.
        ValueError: if `value` is less than `least`; the message includes `why`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}{f' ({why})' if why else ''}, got {number}")
    return number
