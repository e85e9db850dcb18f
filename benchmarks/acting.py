"""What choosing actions costs on a CPU, alone: microseconds per step, rates, and where the time goes.

    .venv/bin/python -m benchmarks.acting
    .venv/bin/python -m benchmarks.acting --only Transformer --rows 32 --operations

The policies are those of `benchmarks.rollout`, and a Mamba of the same width. Inputs are random and change at
every step, as they do in a rollout: with constant ones the processor learns the outcome of every branch. Rows
begin new episodes together every `--episode` steps, so a Transformer attends to half as many on average.
`ceiling` is what one thread computes in registers; `bound_us` is what the linear layers would take at that rate,
calculated. One thread by default; `program_us` is always of one, the best of some parts of a run.
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
from amago.kernels.step_program import StepProgram, peak_rate
from amago.nets.traj_encoders import MambaTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from benchmarks.rollout import ENCODERS, LAYERS, WIDTH

KINDS: dict[str, Any] = ENCODERS | {"Mamba": partial(MambaTrajEncoder, d_model=WIDTH, n_layers=LAYERS)}
ACTIONS = 5
WARM_UP = 300  # steps
PARTS = 10


class Acting:
    """An agent and the inputs of a step."""

    def __init__(self, encoder: Any, rows: int) -> None:
        torch.manual_seed(0)
        self.agent = Agent(
            obs_space=gym.spaces.Dict({"observation": gym.spaces.Box(-1.0, 1.0, (4,))}),
            rl2_space=gym.spaces.Box(-np.inf, np.inf, (1 + ACTIONS,)),
            action_space=gym.spaces.Discrete(ACTIONS),
            max_seq_len=128,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=encoder,
        ).eval()
        self.rows = rows
        self.obs = {"observation": torch.zeros(rows, 1, 4)}
        self.rl2s = torch.zeros(rows, 1, 1 + ACTIONS)
        self.time_idxs = torch.zeros(rows, 1, 1, dtype=torch.int64)

    @torch.inference_mode()
    def run(self, steps: int, episode: int) -> list[float]:
        """Seconds of each step."""
        taken, hidden = [], None
        for step in range(steps):
            if step % episode == 0:
                hidden = self.agent.init_hidden_state(self.rows, "cpu")
            self.obs["observation"].normal_()
            self.rl2s.normal_()
            self.time_idxs.fill_(step % episode)
            start = time.perf_counter()
            _, hidden = self.agent.get_actions(self.obs, self.rl2s, self.time_idxs, hidden)
            taken.append(time.perf_counter() - start)
        return taken

    @property
    def program(self) -> StepProgram:
        """What the agent acts by.

        Raises:
            SystemExit: it acts by its modules.
        """
        made = self.agent._step_policy._made
        if made is None:
            raise SystemExit(f"no step program: {self.agent._step_policy.reason}")
        return made.program


def flops(program: StepProgram) -> float:
    """Of the linear layers, for one row."""
    return float(sum(2 * np.prod(sizes) for _, sizes in program.operations() if sizes))


def show(name: str, rows: int, arguments: argparse.Namespace, peak: float) -> None:
    """Measures one policy and prints it."""
    acting = Acting(KINDS[name], rows)
    acting.run(WARM_UP, arguments.episode)
    program = acting.program
    work = flops(program) * rows
    middle = float(np.median(acting.run(arguments.steps, arguments.episode)))
    torch.set_num_threads(1)
    parts = []
    for _ in range(PARTS):
        before = np.array(program.profile())
        acting.run(arguments.steps // PARTS, arguments.episode)
        parts.append((np.array(program.profile()) - before) / (arguments.steps // PARTS))
    seconds = min(parts, key=np.sum)
    torch.set_num_threads(arguments.threads)
    numbers = [middle * 1e6, seconds.sum() * 1e6, work / 1e6, work / seconds.sum() / 1e9, work / peak * 1e6]
    print(" | ".join([name, str(rows), *(f"{number:.1f}" for number in numbers)]), flush=True)
    if not arguments.operations:
        return
    for (kind, sizes), taken in zip(program.operations(), seconds, strict=True):
        rate = f"{2 * np.prod(sizes) * rows / taken / 1e9:.0f} GFLOP/s" if sizes else ""
        print(f"    {kind:12} {'x'.join(map(str, sizes)):9} {taken * 1e6:7.2f} us {rate}")


def main() -> None:
    """Measure and print every policy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[12])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--episode", type=int, default=64, help="steps after which all rows begin anew")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="policies whose name contains this")
    parser.add_argument("--operations", action="store_true", help="the time of every operation")
    arguments = parser.parse_args()
    peak = peak_rate()
    torch.set_num_threads(arguments.threads)
    print(f"ceiling: {peak / 1e9:.0f} GFLOP/s\npolicy | rows | us | program_us | MFLOP | GFLOP/s | bound_us")
    for name in KINDS:
        if arguments.only is None or arguments.only in name:
            for rows in arguments.rows:
                show(name, rows, arguments, peak)


if __name__ == "__main__":
    main()
