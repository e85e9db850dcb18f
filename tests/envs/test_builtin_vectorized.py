"""Modules of environments that step many rows: without their packages they are imported, and name the command."""

import subprocess
import sys

import pytest

MISSING = {
    "gymnax": ("gymnax_envs", "GymnaxCompatibility(object(), 2)", "gymnax"),
    "xminigrid": ("xland_minigrid", "XLandMinigridVectorizedGym(2)", "xland"),
    "envpool": ("envpool_envs", 'EnvPoolEnv("CartPole-v1", 2)', "envpool"),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_an_error_with_the_command_that_installs_it(package):
    module, call, extra = MISSING[package]
    # Whether or not it is installed here: None in sys.modules is what Python itself takes for missing.
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"import amago.envs.builtin.{module} as module\n"
        "print('imported')\n"
        f"module.{call}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n"
    assert f"ImportError: this environment needs {package}" in done.stderr
    assert f"pip install 'amago-envs[{extra}]'" in done.stderr


@pytest.mark.parametrize("package", MISSING)
def test_importing_the_module_does_not_import_the_package(package):
    module = MISSING[package][0]
    names = [*MISSING, "jax"]
    program = f"import sys, amago.envs.builtin.{module}; print([name in sys.modules for name in {names}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False, False, False]\n"
