"""Names of trajectory files: `{env_name}_{8 hex digits}_{unix time}` and the ending of the format.

The eight digits are three of the writer and five of the writer's sequence number, so that a sorted list of
names has the order in which each writer wrote, whatever the clock says.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".npz", ".traj")
_WRITER_ID = re.compile("[0-9a-f]{3}").fullmatch
_WRITERS = 16**3
_SEQUENCE_NUMBERS = 16**5
# File systems end names at 255 bytes; the rest of the name takes up to 30, that of the unfinished file 50 more.
_MAX_NAME_BYTES = 160


class TrajectoryName(NamedTuple):
    """The parts of a trajectory file's name."""

    env_name: str
    file_id: str
    unix_time: float


def trajectory_filename(env_name: str, writer_id: str | int, sequence_number: int, time: float) -> str:
    """The name of a trajectory file, without its ending.

    Args:
        env_name: any string; underscores, path separators and control characters are removed, because names hold
            exactly two underscores and are one part of a path.
        writer_id: three hex digits, or an integer in [0, 4096).
        sequence_number: at least 0, counting the writer's files up. It wraps at 2^20; the time keeps names apart
            from there on.
        time: seconds since 1970; whole seconds are kept.

    Raises:
        ValueError: for a writer or number out of range.
    """
    writer = writer_id if isinstance(writer_id, str) else f"{writer_id:03x}"
    if not _WRITER_ID(writer):
        raise ValueError(
            f"writer_id is {writer_id!r}; give three hex digits or an integer in [0, {_WRITERS})"
        )
    if sequence_number < 0:
        raise ValueError(f"sequence_number is {sequence_number}; it counts files and must be at least 0")
    return f"{clean_env_name(env_name)}_{writer}{sequence_number % _SEQUENCE_NUMBERS:05x}_{int(time)}"


@lru_cache(maxsize=4096)
def clean_env_name(env_name: str) -> str:
    """`env_name` as it stands in file names: no underscores, separators, control characters or leading dots."""
    kept = re.sub(r"[_/\\:\x00-\x1f\x7f]", "", env_name).strip().lstrip(".")
    return kept.encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "env"


def parse_filename(name: str | Path) -> TrajectoryName:
    """The parts of a trajectory file's name; folders before it and a known ending are ignored.

    Raises:
        ValueError: if the name is not of the form `{env_name}_{8 hex digits}_{unix time}`.
    """
    stem = strip_suffix(Path(name).name)
    found = re.fullmatch(r"([^_]+)_([0-9a-fA-F]{8})_(\d+(?:\.\d+)?)", stem)
    if found is None:
        raise ValueError(
            f"{Path(name).name!r} is no trajectory file's name; those are "
            f"{{env_name}}_{{8 hex digits}}_{{unix time}} with the ending {' or '.join(SUFFIXES)}"
        )
    return TrajectoryName(found[1], found[2].lower(), float(found[3]))


def strip_suffix(name: str) -> str:
    """`name` without the ending of a trajectory file; other dots belong to the name."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name
