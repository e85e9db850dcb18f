"""`make_vector_env`: environments stepped together, in this process or in worker processes."""

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
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU time per period
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
    """Environments that are stepped together.

    Args:
        make_envs: one callable per environment, each returning an `AMAGOEnv`.
        env_mode: "sync" steps them in this process; "async" in worker processes over shared memory;
            "already_vectorized" takes one callable, whose environment has `batched_envs` rows of its own.
        exploration_wrapper_type: wrapped around each environment; None for evaluation.
        seed: fixes the streams of environments and exploration; None draws fresh entropy.
        rank: of the process in a distributed run.
        role: of the environments' random streams, "env" for training and "eval" for evaluation.
        mp_context: "fork", "spawn" or "forkserver" (async only); "fork" by default where there is one.
        envs_per_worker: environments in one process (async only); by default they are divided evenly among one
            worker per processor core.
        env_timeout: seconds that a worker may take to make, reset or step its environments (async only); a slower
            one is ended with an error that names it. None waits forever.

    Raises:
        ValueError: for an unknown mode or context, no callables, more than one for "already_vectorized", or a
            timeout that is not above 0.
        EnvWorkerError: if an environment cannot be made in its worker.
    """
    make_envs = _checked(make_envs)
    if env_mode not in ENV_MODES:
        hint = did_you_mean(env_mode, ENV_MODES)
        raise ValueError(f"env_mode must be one of {', '.join(ENV_MODES)}, got {env_mode!r}.{hint}")
    if env_mode == "already_vectorized" and len(make_envs) != 1:
        raise ValueError(
            "env_mode 'already_vectorized' takes one callable, whose environment steps all rows, "
            f"got {len(make_envs)}"
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
    """Two asynchronous vector environments with half of the environments and of the workers each.

    Arguments and errors as in `make_vector_env`; environments have the same random streams as there.

    Raises:
        ValueError: if there are fewer than two callables.
    """
    make_envs = _checked(make_envs)
    if len(make_envs) < 2:
        raise ValueError("make_envs has one callable; double buffering needs two or more environments")
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
            raise TypeError(f"make_envs[{i}] must be a callable that makes an AMAGOEnv, got {make_env!r}")
    return make_envs


def _checked_timeout(env_timeout: float | None) -> float | None:
    if env_timeout is not None and not 0.001 <= env_timeout < math.inf:
        raise ValueError(
            f"env_timeout must be at least 0.001 seconds, or None to wait forever, got {env_timeout}"
        )
    return env_timeout


def _context(name: str | None) -> BaseContext:
    """The multiprocessing context `name`; None is "fork" where there is one, because it takes lambdas."""
    methods = multiprocessing.get_all_start_methods()
    if name is None:
        name = "fork" if "fork" in methods else methods[0]
    if name not in methods:
        raise ValueError(f"mp_context must be one of {', '.join(methods)}, got {name!r}")
    return multiprocessing.get_context(name)


def _divide(
    make_envs: Sequence[MakeEnv], envs_per_worker: int | None, max_workers: int
) -> list[Sequence[MakeEnv]]:
    """The callables of each worker, in order; without `envs_per_worker` in nearly equal groups."""
    total = len(make_envs)
    if envs_per_worker is None:
        workers = min(total, max_workers)
        bounds = [total * i // workers for i in range(workers + 1)]
        return [make_envs[start:stop] for start, stop in itertools.pairwise(bounds)]
    if envs_per_worker < 1:
        raise ValueError(f"envs_per_worker must be at least 1, got {envs_per_worker}")
    return [make_envs[i : i + envs_per_worker] for i in range(0, total, envs_per_worker)]


def available_cores() -> int:
    """The processor cores that this process may use, at least 1.

    Respects the affinity mask and a container's quota. torchrun and accelerate set LOCAL_WORLD_SIZE to the number
    of training processes on this machine, which share its cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no quota ("max"), or not Linux
        quota, period = map(int, CPU_QUOTA.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    with contextlib.suppress(ValueError, ZeroDivisionError):
        cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(cores, 1)
