"""Workloads of the learner benchmarks: agents, batches, and plain agents with the same weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from amago import kernels
from amago.agent import Agent, Batch, MultiTaskAgent
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from benchmarks.plain.agents import PlainAgent, PlainMultiTaskAgent
from benchmarks.plain.sizes import Sizes


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An update of `Agent` or, with `bins`, `MultiTaskAgent`, with the networks' default widths.

    Args:
        action_dim: A, width of the action representation.
        discrete: whether actions are one choice among A.
        bins: classes of the critics, 0 for critics that regress.
    """

    action_dim: int
    discrete: bool
    bins: int = 0


BATCH_SIZE, LENGTH, OBS_DIM = 24, 128, 32  # sequences, timesteps of each, numbers in an observation
WORKLOADS = {
    "Agent, 5 discrete": Workload(action_dim=5, discrete=True),
    "Agent, 6 continuous": Workload(action_dim=6, discrete=False),
    "MultiTaskAgent, 5 discrete": Workload(action_dim=5, discrete=True, bins=128),
    "MultiTaskAgent, 6 continuous": Workload(action_dim=6, discrete=False, bins=128),
}


def make_agent(work: Workload) -> Agent:
    """The agent of a workload, with default settings and fixed weights."""
    torch.manual_seed(0)
    action = (
        ActionSpec("discrete", (work.action_dim,), None, None)
        if work.discrete
        else ActionSpec("box", (work.action_dim,), -1.0, 1.0)
    )
    return (MultiTaskAgent if work.bins else Agent)(
        obs_space={"observation": (OBS_DIM,)},
        rl2_space=(1 + work.action_dim,),
        action_space=action,
        max_seq_len=LENGTH,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder,
    )


def make_plain(agent: Agent) -> PlainAgent:
    """The plain agent with the same weights."""
    state = agent.state_dict()
    kind = PlainMultiTaskAgent if isinstance(agent, MultiTaskAgent) else PlainAgent
    plain = kind(Sizes.of(state), agent.action_spec, num_critics=agent.num_critics)
    plain.load_state_dict(state)
    return plain


def make_batch(work: Workload) -> Batch:
    """A fixed random batch without padding."""
    generator = torch.Generator().manual_seed(1)
    rows, steps = BATCH_SIZE, LENGTH

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    if work.discrete:
        chosen = torch.randint(work.action_dim, (rows, steps - 1), generator=generator)
        actions = F.one_hot(chosen, work.action_dim).float()
    else:
        actions = torch.rand(rows, steps - 1, work.action_dim, generator=generator) * 2.0 - 1.0
    batch = Batch(
        obs={"observation": normal(rows, steps, OBS_DIM)},
        rl2s=normal(rows, steps, 1 + work.action_dim),
        rews=normal(rows, steps - 1, 1),
        dones=torch.rand(rows, steps - 1, 1, generator=generator) < 0.02,
        actions=actions,
        time_idxs=torch.arange(steps).view(1, -1, 1).repeat(rows, 1, 1),
        lengths=torch.full((rows,), steps),
    )
    return dataclasses.replace(batch, flat_idxs=batch.real_transitions())


def checksum(agent: Agent | PlainAgent, batch: Batch) -> float:
    """The loss in eval mode, with targets over all critics: nothing random is left but the policy's draws."""
    subset, agent.num_critics_td = agent.num_critics_td, agent.num_critics
    agent.eval()
    torch.manual_seed(2)
    with torch.no_grad():
        loss = agent(batch, log_step=False) if isinstance(agent, Agent) else agent(batch)
    agent.train()
    agent.num_critics_td = subset
    return float(loss)


def count_flop(work: Workload, batch: Batch) -> int:
    """Floating-point operations of the loss and its gradients, counted by torch."""
    agent = make_agent(work).train()
    # torch does not count the products of oneDNN.
    with kernels.use_backend("eager"), FlopCounterMode(display=False) as counter:
        agent(batch, log_step=False).backward()
    return int(counter.get_total_flops())
