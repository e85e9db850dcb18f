"""Modules of task suites: without their packages they are imported, and their classes name the command."""

import subprocess
import sys

import pytest

MISSING = {
    "popgym": ("popgym_envs", 'POPGymAMAGO("popgym-RepeatPreviousEasy-v0")', "popgym"),
    "popgym.envs": ("popgym_envs", "MultiDomainPOPGym()", "popgym"),
    "minigrid": ("babyai", 'MultitaskMetaBabyAI(["GoToLocal-v0"])', "babyai"),
    "metaworld": ("metaworld_ml", 'Metaworld("reach-v3", "train", 3)', "metaworld"),
    "mujoco": ("half_cheetah_v4_vel", "HalfCheetahV4_MetaVelocity()", "mujoco"),
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_an_error_with_the_command_that_installs_it(package):
    module, call, extra = MISSING[package]
    # Whether or not it is installed here: None in sys.modules is what Python itself takes for missing.
    done = run(
        f"import sys; sys.modules[{package!r}] = None\n"
        f"import amago.envs.builtin.{module} as module\n"
        "print('imported')\n"
        f"module.{call}"
    )
    assert done.stdout == "imported\n"
    assert f"ImportError: this environment needs {package.partition('.')[0]}" in done.stderr
    assert f"pip install 'amago-envs[{extra}]'" in done.stderr


def test_the_list_of_babyai_tasks_needs_minigrid_when_it_is_read():
    done = run(
        "import sys; sys.modules['minigrid'] = None\n"
        "from amago.envs.builtin.babyai import BANNED_BABYAI_TASKS\n"
        "print(len(BANNED_BABYAI_TASKS))\n"
        "from amago.envs.builtin.babyai import ALL_BABYAI_TASKS"
    )
    assert done.stdout == "14\n"
    assert "pip install 'amago-envs[babyai]'" in done.stderr


def test_importing_the_modules_imports_no_package():
    # gymnasium itself imports the packages that register environments in it, minigrid among them.
    done = run(
        "import sys, gymnasium\n"
        "before = set(sys.modules)\n"
        "from amago.envs.builtin import babyai, half_cheetah_v4_vel, mazerunner, metaworld_ml, popgym_envs\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'popgym', 'minigrid', 'metaworld', 'mujoco', 'cv2', 'matplotlib', 'torch'}))"
    )
    assert done.stdout == "[]\n", done.stderr
