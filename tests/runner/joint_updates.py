"""Updates of one agent on batches that are divided among micro-batches and processes.

As a program, every process trains on its sequences of each batch and writes its weights: `joint_updates.py FOLDER
MICRO_BATCHES AGENT STATISTICS FSDP`.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from amago.agent import Agent, Batch
from amago.cli_utils import use_config
from amago.distributed import fsdp as sharding
from amago.distributed.processes import Processes, make_accelerator
from amago.experiment.learner import Learner
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.utils import get_constant_schedule_with_warmup

UPDATES = 4
LENGTHS = [9, 2, 5, 3, 9, 7]  # timesteps of the sequences of a batch
# Micro-batches of each process, by number of processes and micro-batches: sequences of the whole batch.
DIVISIONS: dict[tuple[int, int], list[list[list[int]]]] = {
    (1, 1): [[[0, 1, 2, 3, 4, 5]]],
    (1, 3): [[[0], [1, 2, 3], [4, 5]]],
    (2, 1): [[[1, 3]], [[0, 2, 4, 5]]],
    (2, 2): [[[1], [0, 2]], [[3], [4, 5]]],
}


class MaskedAgent(Agent):
    """Trains the critics on transitions of positive reward only, whose share differs between sequences."""

    def edit_critic_mask(
        self, batch: Batch, critic_loss: torch.Tensor, pad_mask: torch.Tensor
    ) -> torch.Tensor:
        return pad_mask & (batch.rews > 0)[..., None, None]


def make_batch(update: int, rows: list[int]) -> Batch:
    """The sequences `rows` of the batch of an update, padded to the longest of them."""
    generator = torch.Generator().manual_seed(update)
    count, steps = len(LENGTHS), max(LENGTHS)
    observation = torch.randn(count, steps, 3, generator=generator) + torch.arange(count).view(-1, 1, 1)
    rl2s = torch.randn(count, steps, 4, generator=generator)
    rews = torch.randn(count, steps - 1, 1, generator=generator) + 0.3 * torch.arange(count).view(-1, 1, 1)
    actions = torch.eye(3)[torch.randint(3, (count, steps - 1), generator=generator)]
    longest = max(LENGTHS[row] for row in rows)
    batch = Batch(
        obs={"observation": observation[rows, :longest]},
        rl2s=rl2s[rows, :longest],
        rews=rews[rows, : longest - 1],
        dones=torch.zeros(len(rows), longest - 1, 1, dtype=torch.bool),
        actions=actions[rows, : longest - 1],
        time_idxs=torch.arange(longest).view(1, -1, 1).expand(len(rows), -1, -1),
        lengths=torch.tensor([LENGTHS[row] for row in rows]),
    )
    batch.flat_idxs = batch.real_transitions()
    return batch


def train(
    folder: Path,
    micro_batches: int,
    *,
    agent_type: type[Agent],
    statistics: bool,
    transformer: bool = False,
    fsdp: bool = False,
) -> dict[str, Any]:
    """Trains on this process's share of every batch.

    Args:
        folder: folder for batches that are not finite.
        micro_batches: number of micro-batches in an update.
        agent_type: class of the agent.
        statistics: normalise by running statistics, which take micro-batches one after the other, as the power
            iteration of SigmaReparam does.
        transformer: a Transformer with activation checkpointing instead of a GRU.
        fsdp: shard it over the processes.
    """
    use_config(
        {
            "FFTstepEncoder.d_hidden": 8,
            "FFTstepEncoder.d_output": 8,
            "FFTstepEncoder.normalize_inputs": statistics,
            "GRUTrajEncoder.d_hidden": 8,
            "GRUTrajEncoder.d_output": 8,
            "TformerTrajEncoder.d_model": 8,
            "TformerTrajEncoder.d_ff": 15,
            "TformerTrajEncoder.n_heads": 2,
            "TformerTrajEncoder.n_layers": 2,
            "TformerTrajEncoder.sigma_reparam": statistics,
            "TformerTrajEncoder.dropout_ff": 0.0,
            "TformerTrajEncoder.dropout_emb": 0.0,
            "TformerTrajEncoder.activation_checkpointing": True,
            "Actor.d_hidden": 8,
            "NCritics.d_hidden": 8,
        }
    )
    processes = Processes(make_accelerator())
    torch.manual_seed(0)
    agent = agent_type(
        obs_space={"observation": (3,)},
        rl2_space=(4,),
        action_space=ActionSpec("discrete", (3,), None, None),
        max_seq_len=16,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder if transformer else GRUTrajEncoder,
        num_critics=2,
        num_critics_td=2,
        n_step=3,
        popart=statistics,
    )
    model = processes.wrap(agent, fsdp=fsdp)
    optimizer = torch.optim.SGD(agent.trainable_params, lr=0.1, foreach=False)
    learner = Learner(
        model,
        optimizer,
        processes,
        lr_schedule=get_constant_schedule_with_warmup(optimizer, 0),
        grad_clip=1.0,
        batches_per_update=micro_batches,
        autocast=False,
        compile_loss=False,
        max_nonfinite=3,
        bad_batch_dir=folder / "bad",
    )
    rows = DIVISIONS[processes.count, micro_batches][processes.rank]
    metrics: dict[str, Any] = {}
    for update in range(UPDATES):
        for micro_batch in rows:
            metrics = learner.train_batch(make_batch(update, micro_batch), log_step=True)
    held = sum(sharding.local(parameter).numel() for parameter in agent.traj_encoder.parameters())
    weights = sharding.unsharded(dict(agent.state_dict()))
    state = {name: tensor.detach().clone() for name, tensor in weights.items()}
    own = {name: float(value) for name, value in metrics.items()}
    return {"state": state, "held": held, "own metrics": own, "metrics": processes.mean_metrics(metrics)}


if __name__ == "__main__":
    output = Path(sys.argv[1])
    agent_types = {"Agent": Agent, "MaskedAgent": MaskedAgent}
    statistics, fsdp = (argument == "True" for argument in sys.argv[4:6])
    result = train(
        output,
        int(sys.argv[2]),
        agent_type=agent_types[sys.argv[3]],
        statistics=statistics,
        transformer=fsdp,
        fsdp=fsdp,
    )
    torch.save(result, output / f"result_{Processes(make_accelerator()).rank}.pt")
