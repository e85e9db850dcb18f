"""Checks what a launcher asks of accelerate through environment variables, and shares the cores of a machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import torch

from amago.envs.env_utils import available_cores
from amago.utils import amago_warning

# Settings of `accelerate launch` with the value that asks for nothing and the argument of Experiment instead.
_ARGUMENTS = {
    "ACCELERATE_USE_FSDP": ("false", "fsdp=True"),
    "ACCELERATE_USE_DEEPSPEED": ("false", "fsdp=True"),
    "ACCELERATE_USE_MEGATRON_LM": ("false", "fsdp=True"),
    "ACCELERATE_DYNAMO_BACKEND": ("no", "compile=True"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("1", "batches_per_update"),
}


def check_launch_settings(mixed_precision: str) -> None:
    """Refuses settings of `accelerate launch` without effect, and warns if it started one process of several.

    Args:
        mixed_precision: "no" or "bf16", as the run is configured.

    Raises:
        ValueError: names the environment variable, its value and the argument of Experiment to use.
    """
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if asked not in ("no", mixed_precision):
        remedy = (
            "set mixed_precision='bf16' of the Experiment"
            if asked == "bf16"
            else "only 'no' and 'bf16' exist"
        )
        raise ValueError(
            f"accelerate is asked for mixed precision {asked!r} (ACCELERATE_MIXED_PRECISION, or accelerate launch "
            f"--mixed_precision {asked}), but the run has mixed_precision={mixed_precision!r}: {remedy}, or "
            "launch with --mixed_precision no"
        )
    for variable, (unasked, argument) in _ARGUMENTS.items():
        value = os.environ.get(variable, unasked)
        if value.lower() not in (unasked, "0", ""):
            raise ValueError(
                f"accelerate is asked for {variable}={value}, which has no effect on an Experiment: use its "
                f"argument {argument}, and launch without"
            )
    # `accelerate launch --cpu` ignores --num_processes, but sets the address only if that is above 1.
    if (
        "ACCELERATE_DYNAMO_BACKEND" in os.environ
        and "MASTER_ADDR" in os.environ
        and "WORLD_SIZE" not in os.environ
    ):
        amago_warning(
            "accelerate launch was asked for several processes and started only this one, as it does on a CPU. "
            "Start them with: ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node=N SCRIPT"
        )


def share_cores(hosts: Sequence[str]) -> None:
    """Divides the cores of this machine among its processes: environment and loader workers, torch's threads.

    Args:
        hosts: Host name of every process. Their number on this host becomes `LOCAL_WORLD_SIZE`, as with torchrun.
            A number of threads in `OMP_NUM_THREADS` is kept; torchrun sets it to 1 by default.
    """
    os.environ["LOCAL_WORLD_SIZE"] = str(hosts.count(socket.gethostname()))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(available_cores())
