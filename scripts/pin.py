"""Writes one of the constraints files: the versions that are installed, so that others get the same.

What needs a newer Python than the oldest that we support gets a marker, and pip chooses freely below it.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

OLDEST_PYTHON = (3, 10)
BY_HAND = {"torch": "2.13.0", "hatchling": "1.33.0"}
HEADER = """\
# The versions that the project is developed and tested with (constraints-envs.txt: the builtin environments,
# constraints-docs.txt: the documentation). The Makefile's pip commands use this file, and `make pins` writes it
# anew from what is installed. The packages themselves ask for ranges.
# Pinned by hand: torch, for a plain `torch` fetches gigabytes of GPU libraries on a machine without a GPU, and
# hatchling, which lives in the temporary environments that packages are built in.
"""


def python_marker(requires_python: str) -> str:
    """The environment marker for a package whose metadata asks for `requires_python` (such as '>=3.11')."""
    bound = re.search(r">=\s*3\.(\d+)", requires_python)
    if bound is None or (3, int(bound[1])) <= OLDEST_PYTHON:
        return ""
    return f' ; python_version >= "3.{bound[1]}"'


def pin_lines(distributions: list[metadata.Distribution]) -> list[str]:
    """One `name==version` a line, sorted; our own packages and those pinned by hand left out."""
    pins = {}
    for distribution in distributions:
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        if name not in BY_HAND and not name.startswith("amago-"):
            requires_python = distribution.metadata.get_all("Requires-Python") or [""]
            marker = python_marker(requires_python[0])
            pins[name] = f"{name}=={distribution.version}{marker}"
    return [pins[name] for name in sorted(pins)]


if __name__ == "__main__":
    lines = [f"{name}=={version}" for name, version in BY_HAND.items()]
    lines += pin_lines(list(metadata.distributions()))
    Path(sys.argv[1]).write_text(HEADER + "\n".join(lines) + "\n")
