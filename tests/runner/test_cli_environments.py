"""Environments by their names on the command line."""

import pickle

import pytest

from amago.cli.environments import BUILTINS, inspect_environment, resolve_environment
from amago.cli.options import UsageProblem


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_builtin_environments_have_a_time_limit_which_is_the_context_length(name: str) -> None:
    maker = resolve_environment(name, {})
    facts = inspect_environment(maker)
    env = maker()
    env.reset(seed=0)
    assert env.env_name == name
    assert facts.time_limit is not None
    assert facts.max_seq_len == facts.time_limit
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


def test_the_context_length_is_the_time_limit_but_at_most_128_for_gymnasium_ids() -> None:
    short = resolve_environment("CartPole-v1", {"max_episode_steps": 20})
    assert inspect_environment(short).max_seq_len == 20
    usual = inspect_environment(resolve_environment("CartPole-v1", {}))
    assert (usual.time_limit, usual.max_seq_len) == (500, 128)


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


def test_a_package_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(UsageProblem, match="no_such_package"):
        resolve_environment("no_such_package:Env-v0", {})
