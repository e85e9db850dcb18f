"""The learning benchmark: rows are kept, found again and tabulated; PPO's advantages are those of the paper."""

import csv
from pathlib import Path

import pytest
import torch
from benchmarks import learning, learning_report
from benchmarks.learning_tasks import TASKS
from benchmarks.neighbours.common import PlainEnv, evaluate
from benchmarks.neighbours.ppo_lstm import GAMMA, LAMBDA, advantages

pytestmark = pytest.mark.source_only


def test_the_table_in_the_docs_is_that_of_the_rows() -> None:
    page = learning_report.PAGE.read_text()
    shown = page.partition(learning_report.BEGIN)[2].partition(learning_report.END)[0]
    assert shown == "\n".join(learning_report.tables())


def test_a_row_is_kept_by_column_and_found_again(tmp_path: Path) -> None:
    file = tmp_path / "learning.csv"
    file.write_text("policy,task,seed,arguments,mean_return\n")
    run = learning.Run("cartpole", "none", 1)
    arguments = TASKS["cartpole"].arguments_of("none")
    learning.append(file, [{"task": "cartpole", "seed": "1", "policy": "none", "arguments": arguments}])
    rows = learning_report.read_rows(file)
    assert rows[0]["mean_return"] == ""
    assert learning.is_there(run, rows)
    assert not learning.is_there(run._replace(seed=2), rows)
    assert not learning.is_there(run, [rows[0] | {"arguments": "CartPole-v1 --epochs 1"}])


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "learning.csv"
    file.write_text("policy,task\n")
    with pytest.raises(ValueError, match="seconds"):
        learning.append(file, [{"task": "cartpole", "seconds": "1"}])


def test_every_row_has_a_task_and_a_policy() -> None:
    for file in (learning_report.RESULTS, learning_report.CURVES):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                assert row["policy"] in TASKS[row["task"]].policies


def test_neighbours_get_the_arguments_of_the_environment_alone() -> None:
    assert TASKS["frozen-lake-hard"].arguments_of("ppo-lstm") == "MetaFrozenLake --env-arg hard_mode=True"


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values = torch.tensor([[0.5], [0.25], [4.0]])
    ends = torch.tensor([[0.0], [1.0], [0.0]])
    third = 3.0 + GAMMA * 10.0 - 4.0
    second = 2.0 - 0.25  # ends the episode
    first = 1.0 + GAMMA * 0.25 - 0.5 + GAMMA * LAMBDA * second
    found = advantages(rewards, values, ends, torch.tensor([10.0]))
    torch.testing.assert_close(found, torch.tensor([[first], [second], [third]]))


def test_plain_environments_show_the_previous_reward_and_action() -> None:
    env = PlainEnv("MetaFrozenLake", ["size=3"])
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4 + 1 + 5,)
    assert not obs[4:].any()
    obs = env.step(3)[0]
    assert obs[5:].tolist() == [0, 0, 0, 1, 0]


def test_evaluation_plays_every_episode_once() -> None:
    begun = []

    def act(obs, first):  # type: ignore[no-untyped-def]
        begun.append(int(first.sum()))
        return [0] * len(obs)

    value = evaluate(lambda: PlainEnv("MetaFrozenLake", ["size=3"]), act, episodes=40, seed=0)
    assert value == 0.0  # staying reaches no goal
    assert sum(begun) == 40
