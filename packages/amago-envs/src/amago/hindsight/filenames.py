"""Names of trajectory files: `{env_name}_{8 hex digits}_{unix time}` and the suffix of the format.

The first three hex digits identify the writer, the other five are the writer's sequence number. Names sorted
by these digits are in the order in which each writer wrote, independent of the clock.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SAVE_FORMATS = {"npz": ".npz", "npz-compressed": ".npz", "traj": ".traj"}
SUFFIXES = tuple(dict.fromkeys(SAVE_FORMATS.values()))
_WRITER_ID = re.compile("[0-9a-f]{3}").fullmatch
_FILENAME = re.compile(r"([^_]+)_([0-9a-fA-F]{8})_(\d+(?:\.\d+)?)").fullmatch
_WRITERS = 16**3
_SEQUENCE_NUMBERS = 16**5
# File systems limit names to 255 bytes. The rest of the name takes up to 30, the unfinished file's name 50 more.
_MAX_NAME_BYTES = 160


class TrajectoryName(NamedTuple):
    """The fields of a trajectory file's name."""

    env_name: str
    file_id: str
    unix_time: float


def trajectory_filename(env_name: str, writer_id: str | int, sequence_number: int, time: float) -> str:
    """The name of a trajectory file, without its suffix.

    Args:
        env_name: any string. Underscores, path separators and control characters are removed, because a name holds
            exactly two underscores and is a single path component.
        writer_id: three hex digits, or an integer in [0, 4096).
        sequence_number: at least 0; number of files the writer wrote before. It wraps at 2^20, after which
            the time keeps names unique.
        time: seconds since 1970, truncated to whole seconds.

    Raises:
        ValueError: if the writer or the number is out of range.
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
    """`env_name` without underscores, separators, control characters and leading dots, as used in file names."""
    kept = re.sub(r"[_/\\:\x00-\x1f\x7f]", "", env_name).strip().lstrip(".")
    return kept.encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "env"


def parse_filename(name: str | Path) -> TrajectoryName:
    """Parses the name of a trajectory file; parent folders and a known suffix are ignored.

    Raises:
        ValueError: if the name does not have the form `{env_name}_{8 hex digits}_{unix time}`.
    """
    found = _FILENAME(strip_suffix(Path(name).name))
    if found is None:
        raise ValueError(
            f"{Path(name).name!r} is not the name of a trajectory file; expected "
            f"{{env_name}}_{{8 hex digits}}_{{unix time}} with the suffix {' or '.join(SUFFIXES)}"
        )
    return TrajectoryName(found[1], found[2].lower(), float(found[3]))


def env_name_of(path: Path) -> str:
    """The environment's name in the name of a trajectory file; the whole stem if the name has another form."""
    try:
        return parse_filename(path).env_name
    except ValueError:
        return clean_env_name(strip_suffix(path.name))


def strip_suffix(name: str) -> str:
    """`name` without the suffix of a trajectory file; other dots belong to the name."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def save_suffix(save_as: str) -> str:
    """The file suffix of the format `save_as`.

    Raises:
        ValueError: if the format is unknown.
    """
    if save_as not in SAVE_FORMATS:
        raise ValueError(f"unknown trajectory format {save_as!r}; choose one of {', '.join(SAVE_FORMATS)}")
    return SAVE_FORMATS[save_as]
