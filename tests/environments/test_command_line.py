"""`amago-run` on the environments of the catalog, with their packages: found by name and id, checked, trained."""

import json
import os
from pathlib import Path

import gin
import numpy as np
import pytest
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.build import plan_run
from amago.cli.environments import inspect_environment, resolve_environment
from amago.cli.options import UsageProblem
from amago.envs.builtin.catalog import CATALOG
from amago.envs.check_env import check_env

TINY = [
    *("--epochs", "1", "--timesteps-per-epoch", "24", "--batches-per-epoch", "1", "--batch-size", "2"),
    *("--max-seq-len", "8", "--memory-size", "16", "--memory-layers", "1", "--actors", "2"),
    *("--eval-episodes", "1", "--val-interval", "5"),
    *("--set", "Experiment.traj_save_len=8"),  # in 24 steps few of the episodes end
]
# Environments whose episodes take few seconds. The others need a download, a process per environment, episodes of
# a thousand simulated steps, or packages that are tested on a stand-in.
TRAINED = [
    "TMazeAlt",
    "KShot",
    "MazeRunner",
    "popgym-RepeatPreviousEasy-v0",
    "BabyAI",
    "BabyAI-GoToLocal-v0",
    "MiniGrid-Empty-5x5-v0",
    "ALE/Boxing-v5",
    "metaworld/reach-v3",
    "dm_control/ball_in_cup-catch",
    "gymnax/CartPole-v1",
]
SEEN_THROUGH_AMAGO_ENV = [
    *(
        "popgym-MineSweeperEasy-v0",
        "BabyAI-GoToObj-v0",
        "MiniGrid-DoorKey-5x5-v0",
        "dm_control/cartpole-balance",
    ),
    *("HalfCheetahMetaVelocity", "MazeRunner", "TMazeAlt", "ALE/Pong-v5"),
]


@pytest.fixture(autouse=True)
def _gin_as_before():
    yield
    gin.clear_config()


@pytest.mark.parametrize("name", TRAINED)
def test_an_environment_trains_from_the_command_line_with_the_recipe_of_its_kind(name, tmp_path):
    arguments = ["train", name, *TINY, "--run-dir", str(tmp_path), "--run-name", "run"]
    shorter = {"KShot": "max_episode_steps=20", "ALE/Boxing-v5": "time_limit=400"}
    if name in shorter:
        arguments += ["--env-arg", shorter[name]]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env_steps"] == 48
    assert np.isfinite(summary["mean_return"])


@pytest.mark.parametrize(
    ("name", "kind", "tstep_encoder"),
    [
        ("popgym-RepeatPreviousEasy-v0", "memory", "ff"),
        ("BabyAI-GoToLocal-v0", "tokens", "multimodal"),
        ("MiniGrid-DoorKey-5x5-v0", "tokens", "multimodal"),
        ("ALE/Pong-v5", "pixels", "cnn"),
        ("dm_control/cheetah-run", "vectors", "ff"),
        ("HalfCheetahMetaVelocity", "memory", "ff"),
        ("gymnax/Pendulum-v1", "vectors", "ff"),
    ],
)
def test_the_kind_and_the_encoder_are_right_for_the_environment(name, kind, tstep_encoder):
    plan = plan_run({"env": name})
    assert plan.facts.kind == kind
    assert plan.recipe.tstep_encoder == tstep_encoder
    assert (plan.recipe.env_mode == "already_vectorized") == name.startswith("gymnax/")


@pytest.mark.parametrize("name", SEEN_THROUGH_AMAGO_ENV)
def test_no_errors_are_found_in_builtin_environments(name):
    report = check_env(resolve_environment(name, {}).make, episodes=1, max_steps=300)
    assert not report.errors, report.errors


@pytest.mark.parametrize(
    "name", [entry.name for entry in CATALOG.values() if entry.steps_of and entry.installed]
)
def test_the_length_of_an_episode_is_that_of_the_catalog(name):
    entry = CATALOG[name]
    if entry.episode_steps is None or entry.name == "XLandMiniGrid":
        return
    assert inspect_environment(resolve_environment(name, {})).time_limit == entry.episode_steps


@pytest.mark.parametrize(
    ("name", "steps", "kind"), [("CartPole-v1", 500, "vectors"), ("Pong-v5", 27_000, "pixels")]
)
def test_an_id_of_envpool_has_its_time_limit_and_the_kind_of_its_observations(name, steps, kind):
    facts = inspect_environment(resolve_environment(f"envpool/{name}", {}))
    assert (facts.time_limit, facts.kind) == (steps, kind)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("popgym-RepeatPreviosEasy-v0", "popgym-RepeatPreviousEasy-v0"),
        ("BabyAI-GoToLocl-v0", "BabyAI-GoToLocal-v0"),
        ("ALE/Pongg-v5", "ALE/Pong-v5"),
        ("dm_control/cheetah-walk", "cheetah-run"),
    ],
)
def test_a_mistyped_id_suggests_the_right_one(name, meant):
    with pytest.raises(UsageProblem, match=f"Did you mean '{meant}'"):
        plan_run({"env": name})


def test_an_environment_that_needs_a_process_of_its_own_gets_one():
    assert plan_run({"env": "RetroArcade"}).recipe.env_mode == "async"
    with pytest.raises(UsageProblem, match="use async"):
        plan_run({"env": "RetroArcade", "env_mode": "sync"})


def test_a_minari_dataset_trains_offline_from_the_command_line(tmp_path, monkeypatch):
    import gymnasium
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    collector = minari.DataCollector(gymnasium.make("CartPole-v1"))
    for seed in range(4):
        collector.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, _ = collector.step(collector.action_space.sample())
            done = terminated or truncated
    collector.create_dataset(
        dataset_id="cartpole/random-v0", author="nobody", author_email="nobody@nowhere.org"
    )
    collector.close()
    arguments = ["train", "minari/cartpole/random-v0", *TINY, "--run-dir", str(tmp_path), "--run-name", "run"]
    arguments[arguments.index("--timesteps-per-epoch") + 1] = "0"
    result = CliRunner().invoke(app, arguments, env={**os.environ, "COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["env_steps"], summary["gradient_steps"]) == (0, 1)
    assert Path(tmp_path / "run" / "ckpts" / "latest" / "policy.pt").is_file()
    arguments = ["eval", str(tmp_path / "run"), "--episodes", "2"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Average Total Return" in result.output
