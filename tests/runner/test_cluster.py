"""A launch on a Ray cluster of several nodes on this machine, one of which is killed in mid-run."""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amago.cli.launch import LaunchTable
from amago.cli.launch_process import ClusterCollectorMaker, ClusterLearner, command
from amago.cli.run_folders import clear_run_folder, require_run_folder
from amago.distributed.cluster import ClusterLaunch
from amago.experiment.shared_run import read_collected
from amago.experiment.status import read_status
from amago.hindsight import load_trajectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: amago-runner[ray]"),
]

DEADLINE = 240.0
CHANGES: dict[str, Any] = {
    "env": "CartPole-v1",
    "actors": 2,
    "timesteps_per_epoch": 50,
    "batches_per_epoch": 10,
    "batch_size": 4,
    "eval_episodes": 2,
    "ckpt_interval": 1,
}


@pytest.fixture
def three_nodes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster with a head for learner and launcher, and two nodes with room for two collectors each."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("0123456789abcdef" * 4)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    memory = 100 * 2**20
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False},
    )
    try:
        nodes = [cluster.add_node(num_cpus=2, object_store_memory=memory) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster, nodes
    finally:
        cluster.shutdown()


def make_launch(folder: Path, address: str, reported: list[str], **changes: Any) -> ClusterLaunch:
    require_run_folder(folder)
    clear_run_folder(folder, overwrite=False)
    settings = {"trust": [], "changes": {**CHANGES, **changes}, "gin_files": [], "assignments": []}
    learner = command(
        "learner",
        folder,
        None,
        **settings,
        resume=False,
        overwrite=False,
        log_to_wandb=False,
        log_to_tensorboard=False,
        only_learn=True,
    )
    return ClusterLaunch(
        ClusterLearner(learner[-1], folder),
        ClusterCollectorMaker(folder),
        folder=folder,
        collectors=3,
        round_steps=100,
        address=address,
        report=reported.append,
    )


def steps_of(folder: Path, index: int) -> int:
    """Timesteps that collector `index` has delivered."""
    steps: int = json.loads((folder / "collectors" / f"{index}.json").read_text())["env_steps"]
    return steps


def poll_until(launch: ClusterLaunch, reached: Callable[[], bool]) -> int | None:
    """Polls until a condition holds or the launch is over; its exit status."""
    deadline = time.monotonic() + DEADLINE
    while not reached():
        status = launch.poll(0.2)
        if status is not None:
            return status
        assert time.monotonic() < deadline, read_status(launch._folder)
    return None


@pytest.mark.timeout(600)
def test_a_lost_node_costs_the_rounds_in_flight_and_nothing_else(
    three_nodes: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    cluster, nodes = three_nodes
    folder = tmp_path / "runs" / "run"
    reported: list[str] = []
    launch = make_launch(folder, cluster.address, reported, epochs=100_000)
    try:
        launch.start()
        assert (
            poll_until(launch, lambda: len(read_status(folder)) == 4) is None
        )  # learner and three collectors
        before = {index: steps_of(folder, index) for index in range(3)}
        files = set(os.listdir(folder / "buffer" / "fifo"))
        cluster.remove_node(nodes[0], allow_graceful=False)
        assert poll_until(launch, lambda: bool(reported)) is None
        assert all("was lost with the round" in message for message in reported)
        # Nothing that was delivered is lost, and all three collect again on the node that is left.
        assert files <= set(os.listdir(folder / "buffer" / "fifo"))
        steps = {index: steps_of(folder, index) for index in range(3)}
        assert all(steps[index] >= before[index] for index in range(3)), (before, steps, reported)

        def go_on() -> int:
            return sum(steps_of(folder, index) > steps[index] for index in range(3))

        # The node that is left has two CPUs.
        assert poll_until(launch, lambda: go_on() >= 2) is None, reported
    finally:
        launch.stop()
    collected = read_collected(folder).env_steps
    trajectories = list((folder / "buffer" / "fifo").iterdir())
    # Whole, and none twice; episodes that were running in the end are missing.
    assert 0.5 * collected < sum(len(load_trajectory(path)) for path in trajectories) <= collected


@pytest.mark.timeout(600)
def test_a_learner_that_dies_ends_the_launch_with_its_last_lines(
    three_nodes: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    cluster, _ = three_nodes
    folder = tmp_path / "runs" / "run"
    reported: list[str] = []
    launch = make_launch(folder, cluster.address, reported, epochs=100_000)
    try:
        launch.start()
        assert poll_until(launch, lambda: len(read_status(folder)) == 4) is None
        assert "collector 2" in str(
            [status["role"] + f" {status['index']}" for status in read_status(folder)]
        )
        assert " steps/s " in LaunchTable(folder, None, 100).line()
        os.kill(launch._learner_pid, 9)
        assert poll_until(launch, lambda: False) == 1
    finally:
        launch.stop()
    assert "The learner ended with" in reported[-1]
