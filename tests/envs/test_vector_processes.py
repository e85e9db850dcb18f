"""Worker processes: environments with processes of their own, and the number of workers."""

import multiprocessing
import os

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.env_utils import available_cores
from amago.envs.vector import make, make_vector_env

METHODS = ["fork", "spawn"]


class SmallLake(MetaFrozenLake):
    """Named at the top level, so that it can be sent to processes that are not forked."""

    def __init__(self) -> None:
        super().__init__(3)


def lakes_in_processes_of_their_own() -> AMAGOEnv:
    modes = getattr(gym.vector, "AutoresetMode", None)  # gymnasium 0.29 has one way only
    kwargs = {} if modes is None else {"autoreset_mode": modes.SAME_STEP}
    return AMAGOEnv(gym.vector.AsyncVectorEnv([SmallLake] * 2, **kwargs), "lakes", batched_envs=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_may_hold_environments_with_processes_of_their_own(method):
    before = set(multiprocessing.active_children())
    env = make_vector_env(
        [lakes_in_processes_of_their_own] * 2, env_mode="async", envs_per_worker=1, mp_context=method
    )
    env.reset(seed=0)
    for _ in range(30):
        step = env.step(np.zeros((4, 1), np.int64))
    assert step.inputs.time_idxs.tolist() == [step.inputs.time_idxs[0]] * 4
    env.close()
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", None), ("100000 100000", 1), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_a_container_quota_limits_available_cores(limit, cores, tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(make, "CPU_QUOTA", tmp_path / "cpu.max")
    allowed = len(os.sched_getaffinity(0))
    assert available_cores() == allowed
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert available_cores() == (allowed if cores is None else min(allowed, cores))


@pytest.mark.parametrize("ranks", [1, 2, 1000])
def test_ranks_on_one_machine_share_its_cores(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "CPU_QUOTA", tmp_path / "no quota")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert available_cores() == max(len(os.sched_getaffinity(0)) // ranks, 1)


@pytest.mark.parametrize(
    ("cores", "envs_per_worker", "workers"), [(1, None, 1), (2, None, 2), (None, 2, 3), (None, 1, 5)]
)
def test_environments_are_divided_among_cores_or_by_envs_per_worker(cores, envs_per_worker, workers):
    before = multiprocessing.active_children()
    allowed = os.sched_getaffinity(0)
    if cores is not None and cores > len(allowed):
        cores, workers = len(allowed), len(allowed)
    try:
        if cores is not None:
            os.sched_setaffinity(0, sorted(allowed)[:cores])
        env = make_vector_env(
            [lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 5,
            env_mode="async",
            envs_per_worker=envs_per_worker,
        )
        assert len(multiprocessing.active_children()) - len(before) == workers
        env.close()
    finally:
        os.sched_setaffinity(0, allowed)
