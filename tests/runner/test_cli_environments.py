"""Environments by their names on the command line."""

import pickle
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from amago.cli.build import plan_run
from amago.cli.environments import inspect_environment, resolve_environment
from amago.cli.options import UsageProblem
from amago.envs.builtin.catalog import CATALOG, CatalogEntry

TOYS = ["MetaFrozenLake", "RoomKeyDoor", "TMazeAltActive", "TMazeAltPassive"]


@pytest.mark.parametrize("name", TOYS)
def test_tasks_of_memory_have_the_whole_episode_as_context(name: str) -> None:
    plan = plan_run({"env": name})
    env = plan.maker()
    env.reset(seed=0)
    assert env.env_name == name
    assert plan.recipe.max_seq_len == plan.facts.time_limit is not None
    env.close()


@pytest.mark.parametrize("name", ["MetaFrozenLake", "TMazeAltActive", "TMazeAltPassive"])
def test_the_time_limit_is_the_length_of_the_longest_episode(name: str) -> None:
    maker = resolve_environment(name, {})
    env = maker.make()
    env.reset(seed=0)
    steps, done = 0, False
    while not done:
        # Action 0 never reaches a goal, so the episode ends at its time limit.
        _, _, terminated, truncated, _ = env.step(0)
        done = terminated or truncated
        steps += 1
    assert steps == inspect_environment(maker).time_limit


def test_a_gymnasium_id_without_a_version_is_the_newest_version() -> None:
    assert resolve_environment("CartPole", {}).name == "CartPole-v1"


def test_an_id_with_a_package_imports_the_package() -> None:
    maker = resolve_environment("gymnasium.envs.classic_control:Pendulum-v1", {"g": 3.0})
    assert maker().env_name == "Pendulum-v1"


def test_the_context_length_is_the_time_limit_up_to_the_length_of_the_kind() -> None:
    facts = inspect_environment(resolve_environment("CartPole-v1", {"max_episode_steps": 20}))
    assert facts.max_seq_len(128) == 20
    facts = inspect_environment(resolve_environment("CartPole-v1", {}))
    assert (facts.time_limit, facts.max_seq_len(128)) == (500, 128)


class Shows(gymnasium.Env[Any, int]):
    """Shows whatever its space holds."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.observation_space = space


SPACES = {
    "pixels": [
        gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8),
        gymnasium.spaces.Box(0, 255, (1, 32, 40), np.uint8),
    ],
    "tokens": [gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)],
    "vectors": [
        gymnasium.spaces.Box(-1, 1, (84,)),
        gymnasium.spaces.Discrete(16),
        gymnasium.spaces.MultiDiscrete([3, 4]),
    ],
}


@pytest.mark.parametrize("kind", SPACES)
def test_the_kind_of_an_environment_outside_the_catalog_is_read_off_its_observations(kind: str) -> None:
    for space in SPACES[kind]:
        gymnasium.register("Shows-v0", partial(Shows, space))
        try:
            assert inspect_environment(resolve_environment("Shows-v0", {})).kind == kind
            both = gymnasium.spaces.Dict({"shown": space, "speed": gymnasium.spaces.Box(-1, 1, (2,))})
            gymnasium.register("Both-v0", partial(Shows, both))
            assert inspect_environment(resolve_environment("Both-v0", {})).kind == kind
        finally:
            for name in ("Shows-v0", "Both-v0"):
                gymnasium.registry.pop(name, None)


@pytest.mark.parametrize("kind", SPACES)
def test_images_decide_the_kind_in_a_family_of_vectors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(make=lambda number: Shows(SPACES[kind][number]))
    monkeypatch.setitem(sys.modules, "family", module)
    entry = CatalogEntry(
        name="Family",
        module="family",
        factory="make",
        description="of ids",
        kind="vectors",
        id_prefix="family/",
        id_arguments=lambda env_id: {"number": int(env_id.partition("/")[2])},
    )
    monkeypatch.setitem(CATALOG, "Family", entry)
    for number in range(len(SPACES[kind])):
        assert inspect_environment(resolve_environment(f"family/{number}", {})).kind == kind


def test_an_unknown_id_of_a_module_names_those_that_it_registers() -> None:
    gymnasium.register("Shown-v3", "tests.runner.test_cli_environments:Shows")
    try:
        with pytest.raises(UsageProblem, match=r"It registers Shown-v3\. Did you mean 'Shown-v3'"):
            resolve_environment("tests.runner:Shown-v1", {})
    finally:
        del gymnasium.registry["Shown-v3"]


def test_environments_of_a_module_are_named_by_id_or_by_class() -> None:
    module = "gymnasium.envs.classic_control"
    assert resolve_environment(f"{module}:Pendulum-v1", {})().env_name == "Pendulum-v1"
    maker = resolve_environment(f"{module}:PendulumEnv", {"g": 3.0})
    assert maker().unwrapped.g == 3.0
    assert pickle.loads(pickle.dumps(maker)) == maker


def test_environments_and_encoders_of_the_working_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Mine-v0', PendulumEnv, max_episode_steps=30)\n"
    )
    (tmp_path / "my_encoders.py").write_text(
        "from amago.nets.tstep_encoders import FFTstepEncoder, register_tstep_encoder\n"
        "@register_tstep_encoder('my_encoder')\n"
        "class MyEncoder(FFTstepEncoder):\n"
        "    pass\n"
    )
    (tmp_path / "mine.gin").write_text("import my_encoders\nAgent.gamma = 0.9\n")
    train = [str(Path(sys.executable).parent / "amago-run"), "train", "--gin", "mine.gin"]
    mine = ["my_envs:Mine-v0", "--tstep-encoder", "my_encoder", "--epochs", "1"]
    budget = ["--batches-per-epoch", "1", "--actors", "2", "--eval-episodes", "2"]
    resumed = ["--run-name", "my_envs-Mine-v0", "--resume", "--epochs", "2", "--trust", "my_envs"]
    for arguments in ([*mine, *budget], resumed):
        finished = subprocess.run(
            [*train, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "runs" / "my_envs-Mine-v0" / "summary.json").is_file()


@pytest.mark.skipif(gymnasium.__version__ < "1", reason="gymnasium 0.29 has one mode")
def test_a_gymnasium_id_with_a_vector_version_steps_its_environments_together() -> None:
    plan = plan_run({"env": "CartPole-v1", "env_mode": "already_vectorized", "actors": 3})
    env = plan.maker()
    assert env.batched_envs == 3
    timestep, _ = env.reset(seed=0)
    assert timestep.obs["observation"].shape == (3, 4)
    env.close()


def test_a_maker_can_be_pickled() -> None:
    maker = resolve_environment("MetaFrozenLake", {"size": 4})
    copy = pickle.loads(pickle.dumps(maker))
    assert copy == maker
    assert copy().observation_space == maker().observation_space


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("MetaFrozenLak", "MetaFrozenLake"),
        ("metafrozenlake", "MetaFrozenLake"),
        ("CartPoel", "CartPole-v1"),
        ("CartPole-v9", "CartPole-v1"),
    ],
)
def test_a_mistyped_environment_suggests_the_right_one(typed: str, meant: str) -> None:
    with pytest.raises(UsageProblem, match=f"Did you mean '{meant}'"):
        resolve_environment(typed, {})


@pytest.mark.parametrize("name", ["MetaFrozenLake", "Pendulum-v1"])
def test_an_unknown_environment_argument_is_named(name: str) -> None:
    with pytest.raises(UsageProblem, match="'sise'"):
        inspect_environment(resolve_environment(name, {"sise": 3}))


def test_an_environment_that_cannot_be_made_says_why() -> None:
    maker = resolve_environment("MetaFrozenLake", {"size": 1})
    with pytest.raises(UsageProblem, match="size must be at least 2"):
        inspect_environment(maker)


def test_an_environment_that_misses_its_data_says_so() -> None:
    def make(**arguments: Any) -> None:
        raise FileNotFoundError("dataset not found locally")

    gymnasium.register("Missing-v0", make)
    try:
        with pytest.raises(UsageProblem, match="not found locally"):
            inspect_environment(resolve_environment("Missing-v0", {}))
    finally:
        gymnasium.registry.pop("Missing-v0", None)


def test_a_package_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(UsageProblem, match="no_such_package"):
        resolve_environment("no_such_package:Env-v0", {})
