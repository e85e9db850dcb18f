"""However a program with worker processes ends: by itself, by an exception, by Ctrl-C, or killed.

Its workers hold its output open, so reading all of that returns when the last of them has ended.
"""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
import numpy as np
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env

env = make_vector_env([lambda: AMAGOEnv(MetaFrozenLake(3), "lake")] * 4, env_mode="async", envs_per_worker=2)
env.reset()
env.step(np.zeros((4, 1), np.int64))
print("stepped", flush=True)
{ending}
"""


@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(0)", "1 / 0", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_workers_end_with_the_main_process_however_it_ends(ending):
    # Workers inherit the pipe of the script's output, which therefore ends with the last of them.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ending=ending)],
        capture_output=True,
        timeout=30,
        text=True,
        check=False,
    )
    assert done.stdout == "stepped\n"
    assert "Exception ignored" not in done.stderr


INTERRUPTED = """
import numpy as np
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env

def make_lake():
    return AMAGOEnv(MetaFrozenLake(3), "lake")

if __name__ == "__main__":
    env = make_vector_env([make_lake] * 4, env_mode="async", envs_per_worker=2, mp_context="{method}")
    env.reset()
    env.step(np.zeros((4, 1), np.int64))
    print("stepped", flush=True)
    while True:
        env.step(np.zeros((4, 1), np.int64))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_ends_all_processes_with_one_keyboard_interrupt(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(method=method))
    program = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout.readline() == "stepped\n"
    os.killpg(program.pid, signal.SIGINT)  # as the terminal does: to the workers too
    out, err = program.communicate(timeout=30)  # returns when no process holds the pipes any more
    assert out == ""
    assert program.returncode == -signal.SIGINT
    assert err.count("KeyboardInterrupt") == 1
    assert err.count("Traceback") == 1


STARTING = """
import os, signal, sys, threading
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env

def make_lake():
    os.write(1, b"a worker is starting\\n")
    threading.Event().wait(0.5)
    return AMAGOEnv(MetaFrozenLake(3), "lake")

if __name__ == "__main__":
    make_vector_env([make_lake] * 2, env_mode="async", envs_per_worker=1)
"""


def test_ctrl_c_while_workers_start_ends_all_processes_with_one_keyboard_interrupt(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    program = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout.readline() == "a worker is starting\n"
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=30)
    assert program.returncode == -signal.SIGINT
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1


AT_A_FORK = """
import os, signal
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.vector import make_vector_env

env = make_vector_env([lambda: AMAGOEnv(MetaFrozenLake(3), "lake")], env_mode="async")
print("went on")
"""


def test_ctrl_c_at_the_moment_of_a_fork_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", AT_A_FORK], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == ""
    assert done.returncode == -signal.SIGINT
    assert "Exception ignored" not in done.stderr
