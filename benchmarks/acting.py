"""Time of one policy step on a CPU, without an environment: compiled, and with the agent's modules.

    .venv/bin/python -m benchmarks.acting
    .venv/bin/python -m benchmarks.acting --only Transformer --rows 1 12 64

The policies are those of `benchmarks.rollout`, and a Mamba of the same width. Inputs are random and change at
every step, as in a rollout: with constant inputs the processor predicts every branch. All rows begin new
episodes every `--episode` steps, so a Transformer attends to half as many steps on average. Medians in
microseconds.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from amago.agent import Agent
from amago.agent.acting import compile_actor
from amago.nets.traj_encoders import MambaTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from benchmarks.rollout import ENCODERS, LAYERS, WIDTH

KINDS: dict[str, Any] = ENCODERS | {"Mamba": partial(MambaTrajEncoder, d_model=WIDTH, n_layers=LAYERS)}
ACTIONS = 5


def make_agent(encoder: Any) -> Agent:
    """An agent with random weights."""
    torch.manual_seed(0)
    return Agent(
        obs_space=gym.spaces.Dict({"observation": gym.spaces.Box(-1.0, 1.0, (4,))}),
        rl2_space=gym.spaces.Box(-np.inf, np.inf, (1 + ACTIONS,)),
        action_space=gym.spaces.Discrete(ACTIONS),
        max_seq_len=128,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=encoder,
    ).eval()


@torch.inference_mode()
def step_time(agent: Agent, get_actions: Any, rows: int, steps: int, episode: int) -> float:
    """The median duration of a step in microseconds, after a tenth of the steps to warm up."""
    obs = {"observation": torch.zeros(rows, 1, 4)}
    rl2s, time_idxs = torch.zeros(rows, 1, 1 + ACTIONS), torch.zeros(rows, 1, 1, dtype=torch.int64)
    seconds, hidden_state = [], None
    for step in range(steps + steps // 10):
        if step % episode == 0:
            hidden_state = agent.init_hidden_state(rows, "cpu")
        obs["observation"].normal_()
        rl2s.normal_()
        time_idxs.fill_(step % episode)
        start = time.perf_counter()
        _, hidden_state = get_actions(obs, rl2s, time_idxs, hidden_state)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[steps // 10 :])) * 1e6


def main() -> None:
    """Measures and prints every policy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 12, 64])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--episode", type=int, default=64, help="steps after which all rows begin anew")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="policies whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("policy | rows | compiled us | modules us | refresh ms")
    for name, encoder in KINDS.items():
        if arguments.only is not None and arguments.only not in name:
            continue
        agent = make_agent(encoder)
        compiled = compile_actor(agent)
        if compiled is None:
            raise SystemExit("the agent cannot be compiled: is there a C++ compiler?")
        start = time.perf_counter()
        compiled.refresh()
        refresh = (time.perf_counter() - start) * 1e3
        for rows in arguments.rows:
            us = step_time(agent, compiled.get_actions, rows, arguments.steps, arguments.episode)
            modules = step_time(agent, agent.get_actions, rows, arguments.steps // 10, arguments.episode)
            print(f"{name} | {rows} | {us:.1f} | {modules:.1f} | {refresh:.1f}", flush=True)


if __name__ == "__main__":
    main()
