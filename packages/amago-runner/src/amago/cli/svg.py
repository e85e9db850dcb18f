"""Line charts as SVG that takes its colours and font from the page around it, so that it follows light and dark.

Colours are the CSS classes s0, s1, … (`stroke`, `fill`); a chart has a fixed width in pixels, because a scaled one
would scale its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from amago.cli.text import short

LEFT, RIGHT, TOP, BOTTOM = 46, 16, 12, 40  # margins of the plot in pixels
_DASHES = ("", "7 4", "2 3")  # a second and third round of colours
COLOURS = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart.

    Attributes:
        label: text of the points' tooltips.
        index: number of the line, which decides colour and dashes.
        x, y: points.
        low, high: edges of a band around the line, or empty.
        faint: draw a thin line without points.
    """

    label: str
    index: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default=())
    high: Sequence[float] = field(default=())
    faint: bool = False


def colour_class(index: int) -> str:
    """The CSS class of a line's colour."""
    return f"s{index % COLOURS}"


def line_chart(
    lines: Sequence[Line],
    *,
    width: int,
    height: int,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    numbers: bool = False,
) -> Markup:
    """Draws lines over common axes.

    Args:
        lines: the lines, later ones on top.
        width, height: size in pixels.
        x_label, y_label: what the axes show; also the chart's description for screen readers.
        y_range: ends of the y axis; None for those of the lines.
        x_ticks: positions of ticks; None for round numbers.
        numbers: write the values above the highest point and below the lowest one of every position.
    """
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for values in (line.y, line.low, line.high) for y in values]
    if not xs:
        return Markup("")
    x_low, x_high = min(xs), max(xs)
    y_ticks = _ticks(*(y_range or (min(ys), max(ys))), count=5)
    y_low, y_high = y_range or (y_ticks[0], y_ticks[-1])
    if x_ticks is None:
        x_ticks = [x for x in _ticks(x_low, x_high, count=max(3, width // 110)) if x_low <= x <= x_high]
    x_span, y_span = (x_high - x_low) or 1.0, (y_high - y_low) or 1.0
    inner_width, inner_height = width - LEFT - RIGHT, height - TOP - BOTTOM

    def at_x(x: float) -> float:
        return round(LEFT + (x - x_low) / x_span * inner_width, 1)

    def at_y(y: float) -> float:
        return round(TOP + (1 - (y - y_low) / y_span) * inner_height, 1)

    def path(x: Sequence[float], y: Sequence[float]) -> str:
        return "M" + "L".join(f"{at_x(a)} {at_y(b)}" for a, b in zip(x, y, strict=True))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(f"{y_label} over {x_label}")}">'
    ]
    bottom, right = TOP + inner_height, LEFT + inner_width
    for tick in y_ticks:
        if y_low <= tick <= y_high:
            parts.append(f'<path class="grid" d="M{LEFT} {at_y(tick)}H{right}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{at_y(tick) + 4}" class="end">{short(tick)}</text>')
    for tick in x_ticks:
        parts.append(f'<path class="axis" d="M{at_x(tick)} {bottom}v4"/>')
        parts.append(f'<text x="{at_x(tick)}" y="{bottom + 17}" class="middle">{short(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    parts.append(f'<text x="{right}" y="{height - 4}" class="end label">{escape(x_label)}</text>')
    for line in lines:
        colour = colour_class(line.index)
        if line.low:
            edge = path(line.x, line.high) + "L" + path(line.x[::-1], line.low[::-1])[1:]
            parts.append(f'<path class="band {colour}" d="{edge}Z"/>')
    for line in lines:
        if not line.x:
            continue
        colour, dashes = colour_class(line.index), _DASHES[line.index // COLOURS % len(_DASHES)]
        kind = "faint" if line.faint else "line"
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<path class="{kind} {colour}" d="{path(line.x, line.y)}"{dash}/>')
        if not line.faint:
            # Many points would hide the line; they still carry its tooltips.
            radius = 3.5 if len(line.x) <= 40 else 0
            for x, y in zip(line.x, line.y, strict=True):
                title = escape(f"{line.label}: {y:.4g} at {short(x)}")
                point = f'cx="{at_x(x)}" cy="{at_y(y)}" r="{radius}"'
                parts.append(f'<circle class="{colour}" {point}><title>{title}</title></circle>')
    if numbers:
        points: dict[float, list[float]] = {}
        for line in lines:
            for x, y in zip(line.x, line.y, strict=True):
                points.setdefault(x, []).append(y)
        for x, values in points.items():
            for y, shift in {max(values): -9, **({min(values): 18} if len(values) > 1 else {})}.items():
                anchor = "start" if x == x_low else "end" if x == x_high else "middle"  # clear of the axes
                parts.append(f'<text x="{at_x(x)}" y="{at_y(y) + shift}" class="{anchor}">{y:.2f}</text>')
    return Markup("".join(parts) + "</svg>")


def _ticks(low: float, high: float, *, count: int) -> list[float]:
    """About `count` round numbers that enclose an interval."""
    from matplotlib.ticker import MaxNLocator

    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    return [float(tick) for tick in MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
