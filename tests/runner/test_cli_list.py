"""`amago-run list` and `amago-run check-env`, and the table in docs/environments.md."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import gin
import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.cli.build import plan_run
from amago.cli.listing import environments_as_markdown
from amago.cli.recipe import RECIPES, Recipe, recipe_for
from amago.envs.builtin.catalog import CATALOG, KINDS

DOCS = Path(__file__).parents[2] / "docs"


def amago_run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"}, catch_exceptions=False)


@pytest.fixture(autouse=True)
def _gin_as_before() -> Iterator[None]:
    yield
    gin.clear_config()


def test_every_environment_of_the_catalog_is_listed() -> None:
    shown = amago_run("list", "environments").output
    for entry in CATALOG.values():
        assert re.search(rf"^{re.escape(entry.name)}", shown, re.MULTILINE)


def test_every_kind_has_a_recipe_and_the_recipes_are_listed() -> None:
    assert RECIPES.keys() == {*KINDS, "continuous"}
    shown = amago_run("list", "recipes").output
    assert all(kind in shown for kind in KINDS)
    assert f"{RECIPES['vectors']['batch_size']}" in shown


def test_recipes_change_only_settings_that_exist() -> None:
    settings = {field.name for field in dataclasses.fields(Recipe)}
    for changes in RECIPES.values():
        assert changes.keys() <= settings
    assert recipe_for("any", "vectors", "box") == Recipe(env="any", **RECIPES["continuous"])
    assert recipe_for("any", "pixels", "box") == Recipe(env="any", **RECIPES["pixels"])


def test_registered_names_are_listed() -> None:
    assert "transformer" in amago_run("list", "traj-encoders").output
    shown = amago_run("list").output
    assert all(word in shown for word in ("agents", "explorations", "multitask", "egreedy"))


@pytest.mark.source_only
def test_the_table_of_the_documentation_is_that_of_the_catalog() -> None:
    documented = (DOCS / "environments.md").read_text()
    assert environments_as_markdown() in documented, "run amago-run list environments --markdown"


def test_settings_of_the_agent_are_those_of_the_chosen_one() -> None:
    plan = plan_run({"env": "CartPole-v1", "agent": "multitask"})
    assert not any(key.startswith("Agent.") or ".Agent." in key for key in plan.gin)
    gamma = RECIPES["vectors"]["gin"]["Agent.gamma"]
    assert plan.gin["amago.agent.MultiTaskAgent.gamma"] == gamma


def test_check_env_tells_what_the_agent_makes_of_an_environment() -> None:
    result = amago_run("check-env", "Pendulum-v1", "--episodes", "1")
    assert result.exit_code == 0
    shown = " ".join(result.output.split())
    for text in (
        "0 errors, 0 warnings",
        "observation (3,) float32 -8 to 8",
        "Time limit 200 steps",
        "Parameters",
    ):
        assert text in shown
    assert re.search(r"Speed [\d,]+ steps per second", shown)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            (),
            "Kind vectors Time limit 200 steps Encoders ff for a step, ff for sequences Memory none; if earlier "
            "steps or attempts must be remembered: --kind memory",
        ),
        (
            ("--kind", "memory"),
            "Kind memory Time limit 200 steps Encoders ff for a step, transformer for sequences "
            "Context 200 steps",
        ),
    ],
)
def test_check_env_tells_how_the_agent_gets_memory(options: tuple[str, ...], said: str) -> None:
    shown = amago_run("check-env", "Pendulum-v1", "--episodes", "1", *options).output
    assert said in " ".join(shown.split())


def test_the_settings_of_another_kind_are_those_of_its_recipe() -> None:
    recipe = plan_run({"env": "CartPole-v1", "kind": "memory", "actors": 3}).recipe
    expected = Recipe(env="CartPole-v1", **RECIPES["memory"])
    assert (recipe.kind, recipe.actors, recipe.max_seq_len) == ("memory", 3, 500)
    assert (recipe.traj_encoder, recipe.epochs, recipe.gin) == (
        expected.traj_encoder,
        expected.epochs,
        expected.gin,
    )
    assert plan_run({"env": "MetaFrozenLake", "kind": "vectors"}).recipe.traj_encoder == "ff"


def test_a_module_registers_names_before_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_strategy.py").write_text(
        "from amago.envs.exploration import EpsilonGreedy, register_exploration\n"
        "@register_exploration('own_strategy')\n"
        "class Own(EpsilonGreedy): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "own_strategy" not in amago_run("list", "explorations").output
    assert "own_strategy" in amago_run("list", "explorations", "own_strategy").output
    assert "cannot be imported" in amago_run("list", "explorations", "absent_module").output


class Wrong(gymnasium.Env[np.ndarray, int]):
    """Observations of another dtype than the space says."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        return np.zeros(2), 0.0, False, False, {}


def test_check_env_exits_with_1_for_errors_and_0_for_warnings() -> None:
    gymnasium.register("Wrong-v0", Wrong)
    try:
        result = amago_run("check-env", "Wrong-v0")
    finally:
        del gymnasium.registry["Wrong-v0"]
    assert result.exit_code == 1
    assert "has dtype float64" in result.output
    assert "1 errors, 1 warnings" in result.output  # the warning: no time limit
