"""Factories of vector environments: `make_vector_env` and `make_split_vector_env`."""

import contextlib
import itertools
import math
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from amago.envs.registry import did_you_mean
from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.base import VectorEnv
from amago.envs.vector.double_buffer import SplitVectorEnv
from amago.envs.vector.env_group import ExplorationSetup, MakeEnv
from amago.envs.vector.sync import SyncVectorEnv

ENV_TIMEOUT = 600.0  # seconds
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # container CPU limit: quota and period in microseconds
ENV_MODES = ("sync", "async", "already_vectorized")


def make_vector_env(
    make_envs: Sequence[MakeEnv],
    *,
    env_mode: str,
    exploration_wrapper_type: type[Any] | None = None,
    seed: int | None = None,
    rank: int = 0,
    role: str = "env",
    mp_context: str | None = None,
    envs_per_worker: int | None = None,
    env_timeout: float | None = ENV_TIMEOUT,
) -> VectorEnv:
    """Creates a vector environment.

    Args:
        make_envs: one callable per environment, each returning an `AMAGOEnv`.
        env_mode: "sync" steps the environments in this process; "async" steps them in worker processes with
            shared memory; "already_vectorized" takes one callable whose environment has `batched_envs` rows.
        exploration_wrapper_type: exploration wrapper of each environment; None for evaluation.
        seed: seeds the random streams of environments and exploration; None uses fresh entropy.
        rank: process rank in a distributed run.
        role: name of the environments' random streams, "env" for training and "eval" for evaluation.
        mp_context: "fork", "spawn" or "forkserver" (async only); defaults to "fork" where available.
        envs_per_worker: environments per worker process (async only); by default, environments are split
            evenly among one worker per CPU core.
        env_timeout: time limit in seconds for a worker to create, reset or step its environments (async
            only). A worker that exceeds it is terminated and named in the error. None disables the limit.

    Raises:
        ValueError: for an unknown mode or context, an empty `make_envs`, more than one callable with
            "already_vectorized", or a timeout below 0.001 seconds.
        EnvWorkerError: if a worker cannot create its environments.
    """
    make_envs = _checked(make_envs)
    if env_mode not in ENV_MODES:
        hint = did_you_mean(env_mode, ENV_MODES)
        raise ValueError(f"env_mode must be one of {', '.join(ENV_MODES)}, got {env_mode!r}.{hint}")
    if env_mode == "already_vectorized" and len(make_envs) != 1:
        raise ValueError(
            "env_mode 'already_vectorized' takes exactly one callable, for an environment with all rows, "
            f"got {len(make_envs)} callables"
        )
    exploration = ExplorationSetup(wrapper_type=exploration_wrapper_type, seed=seed, rank=rank)
    if env_mode != "async":
        return SyncVectorEnv(make_envs, exploration, seed=seed, rank=rank, role=role)
    return AsyncVectorEnv(
        _divide(make_envs, envs_per_worker, available_cores()),
        exploration,
        _context(mp_context),
        seed=seed,
        rank=rank,
        role=role,
        env_timeout=_checked_timeout(env_timeout),
    )


def make_split_vector_env(
    make_envs: Sequence[MakeEnv],
    *,
    exploration_wrapper_type: type[Any] | None = None,
    seed: int | None = None,
    rank: int = 0,
    role: str = "env",
    mp_context: str | None = None,
    envs_per_worker: int | None = None,
    env_timeout: float | None = ENV_TIMEOUT,
) -> SplitVectorEnv:
    """Creates two async vector environments, each with half of the environments and of the workers.

    Arguments, errors and random streams are those of `make_vector_env`.

    Raises:
        ValueError: if there are fewer than two callables.
    """
    make_envs = _checked(make_envs)
    if len(make_envs) < 2:
        raise ValueError("double buffering needs two or more environments, but make_envs has one callable")
    exploration = ExplorationSetup(wrapper_type=exploration_wrapper_type, seed=seed, rank=rank)
    context, timeout = _context(mp_context), _checked_timeout(env_timeout)
    middle, cores = (len(make_envs) + 1) // 2, available_cores()
    halves: list[AsyncVectorEnv] = []
    try:
        for start, stop, workers in (
            (0, middle, (cores + 1) // 2),
            (middle, len(make_envs), max(cores // 2, 1)),
        ):
            halves.append(
                AsyncVectorEnv(
                    _divide(make_envs[start:stop], envs_per_worker, workers),
                    exploration,
                    context,
                    first_index=start,
                    seed=seed,
                    rank=rank,
                    role=role,
                    env_timeout=timeout,
                )
            )
        return SplitVectorEnv(*halves)
    except BaseException:
        for half in halves:
            half.close()
        raise


def _checked(make_envs: Sequence[MakeEnv]) -> list[MakeEnv]:
    make_envs = list(make_envs)
    if not make_envs:
        raise ValueError("make_envs is empty: pass one callable per environment")
    for i, make_env in enumerate(make_envs):
        if not callable(make_env):
            raise TypeError(f"make_envs[{i}] must be a callable that returns an AMAGOEnv, got {make_env!r}")
    return make_envs


def _checked_timeout(env_timeout: float | None) -> float | None:
    if env_timeout is not None and not 0.001 <= env_timeout < math.inf:
        raise ValueError(
            f"env_timeout must be at least 0.001 seconds, or None to wait forever, got {env_timeout}"
        )
    return env_timeout


def _context(name: str | None) -> BaseContext:
    """Returns the multiprocessing context; None selects "fork" where available, which supports lambdas."""
    methods = multiprocessing.get_all_start_methods()
    if name is None:
        name = "fork" if "fork" in methods else methods[0]
    if name not in methods:
        raise ValueError(f"mp_context must be one of {', '.join(methods)}, got {name!r}")
    return multiprocessing.get_context(name)


def _divide(
    make_envs: Sequence[MakeEnv], envs_per_worker: int | None, max_workers: int
) -> list[Sequence[MakeEnv]]:
    """Splits the callables into one group per worker, evenly unless `envs_per_worker` is set."""
    total = len(make_envs)
    if envs_per_worker is None:
        workers = min(total, max_workers)
        bounds = [total * i // workers for i in range(workers + 1)]
        return [make_envs[start:stop] for start, stop in itertools.pairwise(bounds)]
    if envs_per_worker < 1:
        raise ValueError(f"envs_per_worker must be at least 1, got {envs_per_worker}")
    return [make_envs[i : i + envs_per_worker] for i in range(0, total, envs_per_worker)]


def available_cores() -> int:
    """Number of CPU cores available to this process, at least 1.

    Respects the CPU affinity mask and the container's CPU quota, and divides by LOCAL_WORLD_SIZE, which
    torchrun and accelerate set to the number of training processes on this machine.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no quota ("max"), or not Linux
        quota, period = map(int, CPU_QUOTA.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    with contextlib.suppress(ValueError, ZeroDivisionError):
        cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(cores, 1)
