"""Games, control and offline environments without their packages: importable, and an error with the command."""

import sys

import pytest

from amago.envs.builtin.alchemy import SymbolicAlchemy
from amago.envs.builtin.ale_retro import ALE, AtariGame, RetroArcade
from amago.envs.builtin.dm_control_envs import DMControl
from amago.envs.builtin.minari_envs import MinariAMAGOEnv
from amago.envs.builtin.procgen_envs import TwoAttemptMTProcgen


@pytest.mark.parametrize(
    ("missing", "make", "command"),
    [
        ("ale_py", lambda: AtariGame("Pong"), "pip install 'amago-envs[atari]'"),
        ("cv2", lambda: ALE(["Pong"]), "pip install 'amago-envs[atari]'"),
        ("stable_retro", lambda: RetroArcade({"Airstriker-Genesis-v0": ["Level1"]}), "'amago-envs[retro]'"),
        ("procgen", lambda: TwoAttemptMTProcgen(["maze"], "easy"), "pip install --no-deps procgen2"),
        ("dm_alchemy.symbolic_alchemy", SymbolicAlchemy, "pip install dm_env 'dm_alchemy @"),
        ("dm_control.suite", lambda: DMControl("cheetah-run"), "pip install 'amago-envs[dm-control]'"),
        ("minari", lambda: MinariAMAGOEnv("toy/cartpole-v0"), "pip install 'amago-envs[minari]'"),
    ],
)
def test_without_its_package_an_environment_names_the_command(missing, make, command, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "amago_procgen2", raising=False)
    with pytest.raises(ImportError) as error:
        make()
    assert command in str(error.value)
