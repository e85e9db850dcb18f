"""Draws docs/assets/memory.svg, success by attempt with and without memory, from the tables of docs/quickstart.md.

    python scripts/docs_pictures.py

The colours are readable on white and on black, so that one picture serves light and dark pages.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, HEIGHT = 520, 300  # small enough for a phone: the text shrinks with the picture
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 16, 54  # margins of the plot
GREY, COLOURS = "#8a8f98", {"Transformer": "#2f81d6", "no memory": "#d9691e"}
LABELS = {"Transformer": "with memory (Transformer)", "no memory": "without memory (feed-forward)"}


def success_by_attempt() -> dict[str, list[float]]:
    """The rows "Transformer" and "no memory": mean return, then success by attempt."""
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    rows = {name: re.search(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE) for name in COLOURS}
    return {name: [float(value) for value in row[1].split("|")[1:]] for name, row in rows.items() if row}


def picture(series: dict[str, list[float]]) -> str:
    attempts = len(next(iter(series.values())))

    def x(attempt: int) -> float:
        return LEFT + (attempt - 1) / (attempts - 1) * (WIDTH - LEFT - RIGHT)

    def y(success: float) -> float:
        return HEIGHT - BOTTOM - success * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="16" fill="{GREY}">',
        "<title>Success by attempt at the same lake, with and without memory</title>",
    ]
    for percent in range(0, 101, 25):
        line = y(percent / 100)
        parts += [
            f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.3"/>',
            f'<text x="{LEFT - 8}" y="{line + 5:.1f}" text-anchor="end">{percent} %</text>',
        ]
    for attempt in range(1, attempts + 1):
        parts.append(f'<text x="{x(attempt):.1f}" y="{HEIGHT - 32}" text-anchor="middle">{attempt}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">attempt at the same lake</text>')
    for name, values in series.items():
        points = [(x(i), y(value)) for i, value in enumerate(values, start=1)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="3"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{COLOURS[name]}"/>' for a, b in points]
        end = f'x="{points[-1][0]:.1f}" y="{points[-1][1] + 28:.1f}" text-anchor="end"'
        parts.append(f'<text {end} fill="{COLOURS[name]}">{LABELS[name]}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    (DOCS / "assets").mkdir(exist_ok=True)
    (DOCS / "assets" / "memory.svg").write_text(picture(success_by_attempt()), encoding="utf-8")
