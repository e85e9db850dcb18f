"""Reading what people type: `key=value` arguments, literals, and the nearest name to a mistyped one.

Nothing here knows about environments or gin; a mistake is a `UsageProblem`, which the commands show without a
traceback and answer with exit code 2.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence

_WORDS = {"true": True, "false": False, "none": None}


class UsageProblem(ValueError):
    """Something typed on the command line that cannot be used.

    Args:
        message: what is wrong, what was received and what would do.
        option: the option or argument it came from, as it is typed, e.g. "--env-arg".
    """

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The member of `known` that `word` was most likely meant to be, or None when nothing comes close.

    Capitals do not count; a name that `word` is a part of wins over one that only shares letters.
    """
    by_folded = {name.casefold(): name for name in sorted(known, reverse=True)}
    folded = word.casefold()
    if folded in by_folded:
        return by_folded[folded]
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    if close:
        return by_folded[close[0]]
    containing = [name for key, name in by_folded.items() if len(folded) > 2 and folded in key]
    return min(containing, key=len) if containing else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question for the nearest of `known`, a space before it: " Did you mean 'x'?"; empty if none is near."""
    near = nearest(word, known)
    return "" if near is None else f" Did you mean {near!r}?"


def parse_literal(text: str) -> object:
    """A Python literal as its value; `true`, `false` and `none` in any case; every other text as itself."""
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value


def split_assignment(text: str, option: str) -> tuple[str, str]:
    """Cuts "key=value" at its first "=", both sides stripped; raises UsageProblem if a side is missing."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageProblem(f"{text!r} is not of the form KEY=VALUE.", option)
    return key.strip(), value.strip()


def parse_arguments(texts: Sequence[str], option: str) -> dict[str, object]:
    """Repeated "key=value" texts as a dictionary of literals; a key given twice is a UsageProblem."""
    arguments: dict[str, object] = {}
    for text in texts:
        key, value = split_assignment(text, option)
        if key in arguments:
            raise UsageProblem(f"{key!r} is given twice.", option)
        arguments[key] = parse_literal(value)
    return arguments
