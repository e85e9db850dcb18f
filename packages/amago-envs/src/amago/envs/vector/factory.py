"""`make_vector_env`: one function for every way of stepping environments together."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from amago.envs.registry import did_you_mean
from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.group_spec import ExplorationSetup, MakeEnv
from amago.envs.vector.processes import available_cores, default_context
from amago.envs.vector.sync import SyncVectorEnv
from amago.envs.vector.types import VectorEnv

ENV_TIMEOUT = 600.0  # seconds
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
        envs_per_worker: environments in one process (async only); by default as many as spread them evenly
            over the processor cores.
        env_timeout: seconds that a worker may take to make, reset or step its environments (async only); one that
            takes longer is reported with what it was doing. None waits forever.

    Raises:
        ValueError: for an unknown mode or context, no callables, more than one for "already_vectorized", or a
            timeout that is not above 0.
        EnvWorkerError: if an environment cannot be made in its worker.
    """
    make_envs = list(make_envs)
    if env_mode not in ENV_MODES:
        hint = did_you_mean(env_mode, ENV_MODES)
        raise ValueError(f"env_mode must be one of {', '.join(ENV_MODES)}, got {env_mode!r}. {hint}".rstrip())
    if not make_envs:
        raise ValueError("make_envs is empty: pass one callable per environment")
    for i, make_env in enumerate(make_envs):
        if not callable(make_env):
            raise TypeError(f"make_envs[{i}] must be a callable that makes an AMAGOEnv, got {make_env!r}")
    if env_mode == "already_vectorized" and len(make_envs) != 1:
        raise ValueError(
            "env_mode 'already_vectorized' takes one callable, whose environment steps all rows, "
            f"got {len(make_envs)}"
        )
    exploration = ExplorationSetup(wrapper_type=exploration_wrapper_type, seed=seed, rank=rank)
    if env_mode != "async":
        return SyncVectorEnv(make_envs, exploration, seed=seed, rank=rank, role=role)
    context = default_context(mp_context)
    if env_timeout is not None and not 0.001 <= env_timeout < math.inf:
        raise ValueError(
            f"env_timeout must be at least 0.001 seconds, or None to wait forever, got {env_timeout}"
        )
    return AsyncVectorEnv(
        _spread(make_envs, envs_per_worker),
        exploration,
        context,
        seed=seed,
        rank=rank,
        role=role,
        env_timeout=env_timeout,
    )


def _spread(make_envs: Sequence[MakeEnv], envs_per_worker: int | None) -> list[Sequence[MakeEnv]]:
    """The callables of each worker, in order; by default one worker per core, of nearly equal sizes."""
    total = len(make_envs)
    if envs_per_worker is None:
        workers = min(total, available_cores())
    elif envs_per_worker < 1:
        raise ValueError(f"envs_per_worker must be at least 1, got {envs_per_worker}")
    else:
        return [make_envs[i : i + envs_per_worker] for i in range(0, total, envs_per_worker)]
    bounds = [total * i // workers for i in range(workers + 1)]
    return [make_envs[start:stop] for start, stop in itertools.pairwise(bounds)]
