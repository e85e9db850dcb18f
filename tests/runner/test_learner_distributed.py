"""Two processes update one agent together, each on batches of its own: statistics, weights and schedule agree."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.source_only

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from accelerate.scheduler import AcceleratedScheduler
from amago.agent import Agent, Batch
from amago.cli_utils import use_config
from amago.distributed.processes import Processes, make_accelerator
from amago.experiment.learner import Learner, make_adamw
from amago.nets.actor_critic import PopArtLayer
from amago.nets.input_norm import InputNorm
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import IdentityTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.utils import get_constant_schedule_with_warmup

UPDATES, WARMUP = 4, 10  # an update has two batches, the last one only one
processes = Processes(make_accelerator())
rank = processes.rank
use_config({
    "FFTstepEncoder.d_hidden": 8, "FFTstepEncoder.d_output": 8, "Actor.d_hidden": 8, "NCritics.d_hidden": 8,
    "Multigammas.continuous": [0.5],
})
torch.manual_seed(0)
agent = Agent(
    obs_space={"observation": (3,)}, rl2_space=(3,), action_space=ActionSpec("box", (2,), -1.0, 1.0),
    max_seq_len=8, tstep_encoder_type=FFTstepEncoder, traj_encoder_type=IdentityTrajEncoder,
)

def make_batch(seed):
    g = torch.Generator().manual_seed(1000 * rank + seed)
    rows, steps = 3 - rank, 5  # the batches differ in size too
    return Batch(
        obs={"observation": (1 + 9 * rank) * torch.randn(rows, steps + 1, 3, generator=g)},
        rl2s=torch.randn(rows, steps + 1, 3, generator=g),
        rews=rank + torch.randn(rows, steps, 1, generator=g),
        dones=torch.zeros(rows, steps, 1, dtype=torch.bool),
        actions=torch.rand(rows, steps, 2, generator=g) * 2 - 1,
        time_idxs=torch.arange(steps + 1).view(1, -1, 1).expand(rows, -1, -1),
        lengths=torch.full((rows,), steps + 1),
    )

optimizer = make_adamw(agent.trainable_params, 0.01, 0.0, torch.device("cpu"))
learner = Learner(
    processes.wrap(agent), optimizer, processes,
    lr_schedule=get_constant_schedule_with_warmup(optimizer, WARMUP),
    grad_clip=1.0, batches_per_update=2, autocast=False, compile_loss=False, max_nonfinite=3,
    bad_batch_dir=Path(sys.argv[1]) / "bad",
)
rates = []
for seed in range(2 * UPDATES - 1):
    metrics = learner.train_batch(make_batch(seed), log_step=True)
    if "Learning Rate" in metrics:
        rates.append(metrics["Learning Rate"])
rates.append(learner.lr_schedule.get_last_lr()[0])
learner.finish()

def flat(tensors):
    return torch.cat([x.flatten().float() for x in tensors]).tolist()

result = {
    "rates": rates,
    "steps": learner.gradient_steps,
    "popart": flat(agent.popart.buffers()),
    "inputs": flat(agent.tstep_encoder.in_norm.buffers()),
    "weights": flat(agent.parameters()),
}

# The faults. A schedule that is handed to accelerate goes one step per process; statistics of a process's own
# batches drift apart.
plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
factor = lambda step: min(1.0, step / WARMUP)
prepared = processes.accelerator.prepare(plain)
schedule = AcceleratedScheduler(torch.optim.lr_scheduler.LambdaLR(plain, factor), [prepared])
result["prepared rates"] = []
for _ in range(UPDATES):
    result["prepared rates"].append(schedule.get_last_lr()[0])
    prepared.step()
    schedule.step()
processes.barrier()
dist.destroy_process_group()
popart, inputs = PopArtLayer(1), InputNorm(3)
for seed in range(2 * UPDATES - 1):
    batch = make_batch(seed)
    popart.update_stats(batch.rews.unsqueeze(-1), torch.ones_like(batch.rews, dtype=torch.bool).unsqueeze(-1))
    inputs.update_stats(batch.obs["observation"])
result["own popart"], result["own inputs"] = flat(popart.buffers()), flat(inputs.buffers())
(Path(sys.argv[1]) / f"result_{rank}.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two real processes found, which met over gloo."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    together = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, str(folder / "script.py"), str(folder)]
    started = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **together,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("statistics", ["popart", "inputs"])
def test_running_statistics_are_the_same_in_every_process(
    results: list[dict[str, Any]], statistics: str
) -> None:
    first, second = results
    assert first[statistics] == second[statistics]
    assert first[f"own {statistics}"] != second[f"own {statistics}"]


def test_weights_agree_after_an_incomplete_update(
    results: list[dict[str, Any]],
) -> None:
    assert results[0]["weights"] == results[1]["weights"]


def test_the_learning_rate_goes_one_step_with_every_update(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["steps"] == 4
        assert result["rates"] == pytest.approx([0.0, 0.001, 0.002, 0.003])
        assert result["prepared rates"] == pytest.approx([0.0, 0.002, 0.004, 0.006])
