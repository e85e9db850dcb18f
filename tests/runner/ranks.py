"""Starts the data-parallel processes of a script, as launchers do."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without the variables of launchers, and with `variables`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*LAUNCHER_VARIABLES, "OMP_NUM_THREADS") and not name.startswith("ACCELERATE_")
    }
    return {**kept, "ACCELERATE_USE_CPU": "true", **variables}


def start_ranks(
    script: Path, arguments: Sequence[str], count: int = 2, threads: str | None = "1"
) -> list[subprocess.Popen[str]]:
    """Starts `count` processes of a script that meet over gloo, without a launcher that watches them."""
    chosen = {} if threads is None else {"OMP_NUM_THREADS": threads}
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=clean_environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                MASTER_ADDR="localhost",
                MASTER_PORT=str(port),
                **chosen,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def finish(started: Sequence[subprocess.Popen[str]], timeout: float = 180) -> list[tuple[str, str]]:
    """Waits for all processes, which must succeed; returns what each printed to stdout and stderr."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors
    return outputs
