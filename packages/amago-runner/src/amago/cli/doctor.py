"""`amago-run doctor`: what is installed, what the machine offers, and a short training with a resume."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from amago.experiment import Experiment

PACKAGES = ("amago-kernels", "amago-nets", "amago-envs", "amago-agents", "amago-runner")
DEPENDENCIES = ("torch", "numpy", "gymnasium", "gin-config", "accelerate", "safetensors", "wandb")
LEAST_DISK = 1 << 30
LEAST_SHARED_MEMORY = 64 << 20
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report.

    Args:
        subject: what was checked.
        found: what was found.
        remedy: what to do if it fails; empty if it is in order.
    """

    subject: str
    found: str
    remedy: str = ""


def version_lines() -> list[str]:
    """Name and version of the five packages, torch and Python; imports none of them."""
    versions = [f"{name} {_version(name) or 'not installed'}" for name in (*PACKAGES, "torch")]
    return [*versions, f"Python {platform.python_version()}"]


def run_doctor(console: Console, folder: Path) -> bool:
    """Prints the report; returns whether everything is in order.

    Args:
        console: where it is printed.
        folder: folder of runs, whose disk is looked at.
    """
    table = Table("", "found", "what to do", box=None, pad_edge=False, header_style="bold")
    failed = False
    for check in _checks(folder):
        failed = failed or bool(check.remedy)
        colour = "red" if check.remedy else "green"
        table.add_row(f"[{colour}]{check.subject}[/]", escape(check.found), escape(check.remedy))
    console.print(table, highlight=False)
    return not failed


def _checks(folder: Path) -> Iterator[Check]:
    yield Check(subject="Python", found=f"{platform.python_version()} on {platform.platform()}")
    for name in (*PACKAGES, *DEPENDENCIES):
        version = _version(name)
        remedy = "" if version else f"pip install {name}"
        yield Check(subject=name, found=version or "not installed", remedy=remedy)
    if older := _version("amago"):
        yield Check(
            subject="amago",
            found=f"{older}, in the same folder as the five packages",
            remedy=f"pip uninstall amago, then pip install --force-reinstall --no-deps {' '.join(PACKAGES)}",
        )
    parts: dict[str, Callable[[], Iterator[Check]]] = {
        "machine": _machine,
        "storage": lambda: _storage(folder),
        "environments": _environments,
        "self-test": _self_test,
    }
    for subject, check in parts.items():
        try:
            yield from check()
        except Exception as error:
            remedy = "mend what the error names; if that is amago itself, report it"
            yield Check(subject=subject, found=f"{type(error).__name__}: {error}", remedy=remedy)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Check]:
    """Cores, threads, devices, compiler and the backend that each operation tries first."""
    import torch

    from amago.envs.env_utils import available_cores
    from amago.kernels import build
    from amago.kernels.backends import ORDERS, available_backends, order

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Check(subject="cores", found=f"{available_cores()}, {torch.get_num_threads()} threads of torch")
    yield Check(subject="devices", found=", ".join(["CPU " + torch.backends.cpu.get_cpu_capability(), *gpus]))
    if torch.version.cuda and shutil.which("nvidia-smi") and not gpus:
        yield Check(
            subject="GPU",
            found=f"torch was built for CUDA {torch.version.cuda} and sees no GPU",
            remedy="compare the driver's CUDA version (nvidia-smi), and check CUDA_VISIBLE_DEVICES",
        )
    compiler = build.find_compiler()
    yield Check(
        subject="compiler",
        found=" ".join(compiler) if compiler else "none: kernels run in torch, and acting is slower",
        remedy="" if compiler else "install a C++ compiler (Debian: apt install g++) or set CXX",
    )
    device = torch.device("cuda" if gpus else "cpu")
    for operation, backends in available_backends().items():
        if operation in ORDERS:
            first = next((each.value for each in order(operation, device) if each.value in backends), None)
            remedy = "" if first else "python -m amago.kernels.doctor tells why"
            yield Check(subject=operation, found=f"{first} on {device}", remedy=remedy)


def _storage(folder: Path) -> Iterator[Check]:
    """Free space for runs, temporary files and shared memory."""
    while not folder.exists():
        folder = folder.absolute().parent
    places = [("disk", folder, LEAST_DISK), ("temporary files", Path(tempfile.gettempdir()), LEAST_DISK)]
    if SHARED_MEMORY.is_dir():
        places.append(("shared memory", SHARED_MEMORY, LEAST_SHARED_MEMORY))
    for subject, path, least in places:
        free = shutil.disk_usage(path).free
        remedy = ""
        if free < least:
            remedy = f"free at least {least / 2**30:.2g} GiB"
            if path == SHARED_MEMORY:
                remedy += "; in Docker start the container with --shm-size=1g"
        yield Check(subject=subject, found=f"{free / 2**30:,.1f} GiB free in {path}", remedy=remedy)


def _environments() -> Iterator[Check]:
    """Which of the optional packages of environments are installed; none is needed."""
    from amago.envs.builtin.catalog import CATALOG

    entries = [entry for entry in CATALOG.values() if entry.packages]
    for installed in (True, False):
        names = sorted({entry.packages[0] for entry in entries if entry.installed is installed})
        subject = "environments" if installed else "not installed"
        yield Check(subject=subject, found=", ".join(names) or "none")


def _self_test() -> Iterator[Check]:
    """Trains one epoch in worker processes, resumes from its checkpoint and trains another."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="amago-doctor-") as folder:
        for epochs in (1, 2):
            experiment = _small_experiment(Path(folder), epochs)
            try:
                experiment.start()
                experiment.learn()
                counters = experiment.counters
            finally:
                experiment.close()
    found = f"{counters.env_steps:,} steps, {counters.gradient_steps} updates, one resume"
    is_incomplete = counters.epoch != 2 or counters.gradient_steps != 10
    yield Check(
        subject="self-test",
        found=f"{found} in {time.monotonic() - began:.0f} s",
        remedy="the resumed run is not complete: report it" if is_incomplete else "",
    )


def _small_experiment(folder: Path, epochs: int) -> Experiment:
    from amago.agent import Agent
    from amago.envs import AMAGOEnv
    from amago.envs.builtin.toy_gym import MetaFrozenLake
    from amago.experiment import Experiment
    from amago.nets.traj_encoders import GRUTrajEncoder
    from amago.nets.tstep_encoders import FFTstepEncoder

    def make_env() -> AMAGOEnv:
        return AMAGOEnv(MetaFrozenLake(2, k_episodes=2))

    return Experiment(
        run_name="self-test",
        ckpt_base_dir=folder,
        dset_root=folder,
        dset_name="data",
        max_seq_len=16,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder,
        agent_type=Agent,
        val_timesteps_per_epoch=20,
        make_train_env=make_env,
        make_val_env=make_env,
        parallel_actors=2,
        traj_save_len=20,
        dloader_workers=1,
        epochs=epochs,
        train_timesteps_per_epoch=100,
        train_batches_per_epoch=5,
        val_interval=1,
        ckpt_interval=1,
        batch_size=4,
        verbose=False,
        seed=0,
        resume=epochs > 1,
    )
