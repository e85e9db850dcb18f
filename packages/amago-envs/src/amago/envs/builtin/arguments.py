"""Validation of the builtin environments' arguments."""

import operator
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex, least: int, why: str = "") -> int:
    """`value` as an int of at least `least`.

    Raises:
        TypeError: if it is not a whole number.
        ValueError: if it is less than `least`; `why` is added to the message.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}{f' ({why})' if why else ''}, got {number}")
    return number
