"""Numbers, durations and sizes as texts for people."""

from __future__ import annotations


def number(value: float) -> str:
    """A return with four significant digits, without an exponent for ordinary sizes."""
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3e}"
    return f"{value:,.{max(0, 4 - len(str(int(abs(value)))))}f}"


def duration(seconds: float) -> str:
    """ "45 s", "12 min 5 s", "3 h 20 min" or "2 d 4 h"."""
    whole = round(seconds)
    for length, unit, below, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // below} {name}"
    return f"{whole} s"


def size(count: float) -> str:
    """Bytes as "512 B", "3.4 MB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def short(value: float) -> str:
    """A number for an axis: 250, 1.5k, 64k, 3M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    return f"{value:.4g}"
