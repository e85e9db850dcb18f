"""Benchmark of updates at several sizes: updates per second of this checkout, in turns with another one.

    .venv/bin/python -m benchmarks.updates
    .venv/bin/python -m benchmarks.updates --against ../other-checkout --rounds 3
    .venv/bin/python -m benchmarks.updates --compile --sizes small middle

24 sequences of up to 46 timesteps (128 for the large size). The amount of padding varies: as from a replay
buffer, every batch has another number of transitions. Each row is measured in a separate process, with
OMP_WAIT_POLICY=PASSIVE as in `amago-run`, and with as many threads as the checkout's Experiment chooses. The
loss of one batch, in eval mode and over all critics, is computed by the chosen backends and by the reference
backends; both must agree.

With --compile, each batch trains the agent and then a copy whose loss is compiled, so that both are measured
under the same load. The time of the copy's first ten updates depends on torch's cache of compiled code:
TORCHINDUCTOR_CACHE_DIR names the cache's folder, empty for the first run on a machine.

Rows go to benchmarks/results/updates.csv, and those of --compile to compile.csv.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "updates.csv"
COMPILED_RESULTS = RESULTS.with_name("compile.csv")
SIZES = {"small": (64, 2, 46), "middle": (128, 3, 46), "large": (256, 3, 128)}  # width, layers, timesteps
AGENTS = ("Agent", "MultiTaskAgent")
ENCODERS = ("TformerTrajEncoder", "GRUTrajEncoder", "FFTrajEncoder")
ROWS, OBS_DIM, ACTIONS = 24, 8, 5
WARM_UP, FEWEST = 10, 10  # updates


def measure(
    size: str, agent_name: str, encoder: str, seconds: float, with_compiled: bool = False
) -> dict[str, Any]:
    """Updates per second, threads and loss; run in a process of its own, with the code of either checkout."""
    import torch
    import torch.nn.functional as F

    import amago.agent
    from amago import kernels
    from amago.cli_utils import use_config
    from amago.distributed.processes import Processes, make_accelerator
    from amago.experiment import learner as learners
    from amago.nets import traj_encoders
    from amago.nets.specs import ActionSpec
    from amago.nets.tstep_encoders import FFTstepEncoder
    from amago.utils import get_constant_schedule_with_warmup

    width, layers, timesteps = SIZES[size]
    settings: dict[str, Any] = {
        "FFTstepEncoder.d_hidden": 2 * width,
        "FFTstepEncoder.d_output": width,
        "Actor.d_hidden": 2 * width,
        "NCritics.d_hidden": 2 * width,
        "NCriticsTwoHot.d_hidden": 2 * width,
    }
    sizes = {
        "TformerTrajEncoder": {
            "d_model": width,
            "d_ff": 4 * width,
            "n_heads": width // 16,
            "n_layers": layers,
        },
        "GRUTrajEncoder": {"d_hidden": width, "d_output": width, "n_layers": layers},
        "FFTrajEncoder": {"d_model": width, "n_layers": layers},
    }
    settings |= {f"{encoder}.{name}": value for name, value in sizes[encoder].items()}
    use_config(settings)
    torch.manual_seed(0)
    agent = getattr(amago.agent, agent_name)(
        obs_space={"observation": (OBS_DIM,)},
        rl2_space=(1 + ACTIONS,),
        action_space=ActionSpec("discrete", (ACTIONS,), None, None),
        max_seq_len=timesteps,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=getattr(traj_encoders, encoder),
    )
    generator = torch.Generator().manual_seed(1)

    def make_batch() -> amago.agent.Batch:
        lengths = torch.randint(timesteps // 3, timesteps + 1, (ROWS,), generator=generator)
        lengths[0] = timesteps
        actions = torch.randint(ACTIONS, (ROWS, timesteps - 1), generator=generator)
        batch = amago.agent.Batch(
            obs={"observation": torch.randn(ROWS, timesteps, OBS_DIM, generator=generator)},
            rl2s=torch.randn(ROWS, timesteps, 1 + ACTIONS, generator=generator),
            rews=torch.randn(ROWS, timesteps - 1, 1, generator=generator),
            dones=torch.rand(ROWS, timesteps - 1, 1, generator=generator) < 0.02,
            actions=F.one_hot(actions, ACTIONS).float(),
            time_idxs=torch.arange(timesteps).view(1, -1, 1).repeat(ROWS, 1, 1),
            lengths=lengths,
        )
        return dataclasses.replace(batch, flat_idxs=batch.real_transitions())

    first = make_batch()

    def loss() -> float:
        copied = copy.deepcopy(agent).eval()  # a loss moves PopArt's statistics
        copied.num_critics_td = copied.num_critics
        torch.manual_seed(2)
        with torch.no_grad():
            return float(copied(first, log_step=False))

    ours = loss()
    with kernels.use_backend("eager"):
        reference = loss()
    if hasattr(learners, "threads_for"):
        torch.set_num_threads(learners.threads_for(agent, ROWS * timesteps))

    def make_learner(compiled: bool) -> Any:
        trained = copy.deepcopy(agent) if compiled else agent
        optimizer = learners.make_adamw(trained.trainable_params, 1e-4, 1e-3, torch.device("cpu"))
        return learners.Learner(
            trained,
            optimizer,
            Processes(make_accelerator()),
            lr_schedule=get_constant_schedule_with_warmup(optimizer, 500),
            grad_clip=1.0,
            batches_per_update=1,
            autocast=False,
            compile_loss=compiled,
            max_nonfinite=10,
            bad_batch_dir=Path(tempfile.gettempdir()),
        )

    turns: list[tuple[Any, list[float]]] = [(make_learner(False), [])]
    if with_compiled:
        turns.append((make_learner(True), []))
    times = turns[0][1]
    while sum(times) < seconds or len(times) < WARM_UP + FEWEST:
        batch = make_batch()
        for learner, spent in turns:
            start = time.perf_counter()
            learner.train_batch(batch, log_step=False)
            spent.append(time.perf_counter() - start)
    medians = [statistics.median(spent[WARM_UP:]) for _, spent in turns]
    compiled: dict[str, Any] = {}
    if with_compiled:
        from torch._dynamo.utils import counters

        compiled = {
            "compiled_updates_per_s": 1.0 / medians[1],
            "warm_up_s": sum(turns[1][1][:WARM_UP]),
            "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
            "from_cache": counters["inductor"]["fxgraph_cache_hit"] > 0,
        }
    return compiled | {
        "updates_per_s": 1.0 / medians[0],
        "threads": torch.get_num_threads(),
        "loss": ours,
        "reference_loss": reference,
    }


def measure_in(checkout: Path, *arguments: Any) -> dict[str, Any]:
    """`measure` in a new process with the environment of a checkout."""
    command = [
        str(checkout / ".venv/bin/python"),
        str(Path(__file__).resolve()),
        "--row",
        json.dumps(arguments),
    ]
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{arguments} failed in {checkout}:\n{run.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    if abs(result["loss"] - result["reference_loss"]) > 1e-4 * abs(result["reference_loss"]):
        raise SystemExit(f"{arguments} in {checkout}: the loss is {result}; nothing was kept")
    return result


def main() -> None:
    """Measures all rows in turns, prints medians and appends them to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout with its .venv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, per row and round")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--compile", action="store_true", help="in turns with a compiled loss")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(*json.loads(arguments.row))))
        return
    from benchmarks.machine import ROOT, append, describe

    if arguments.compile:
        for size, agent in itertools.product(arguments.sizes, arguments.agents):
            result = measure_in(ROOT, size, agent, ENCODERS[0], arguments.seconds, True)
            row = {"size": size, "agent": agent, "encoder": ENCODERS[0]}
            row |= {name: f"{value:.4g}" for name, value in result.items()}
            print(row, flush=True)
            append(COMPILED_RESULTS, row | describe())
        return
    checkouts = {"this": ROOT} | ({"other": arguments.against.resolve()} if arguments.against else {})
    for size, agent, encoder in itertools.product(arguments.sizes, arguments.agents, ENCODERS):
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
        for _ in range(arguments.rounds):
            for name, checkout in checkouts.items():
                found[name].append(measure_in(checkout, size, agent, encoder, arguments.seconds))
        row = {"size": size, "agent": agent, "encoder": encoder, "rounds": str(arguments.rounds)}
        for name, results in found.items():
            rates = [result["updates_per_s"] for result in results]
            row |= {
                f"{name}_updates_per_s": f"{statistics.median(rates):.2f}",
                f"{name}_threads": str(results[0]["threads"]),
                f"{name}_loss": f"{results[0]['loss']:.6g}",
            }
        print(row, flush=True)
        append(RESULTS, row | describe())


if __name__ == "__main__":
    main()
