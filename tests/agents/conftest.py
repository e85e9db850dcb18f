"""Fixtures of the agents' tests: a clean gin configuration and small agents without an environment."""

from collections.abc import Callable, Iterator

import gin
import pytest
import torch

from amago.agent import Agent, Batch
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

SMALL = {
    "FFTstepEncoder.d_hidden": 16,
    "FFTstepEncoder.d_output": 12,
    "FFTstepEncoder.n_layers": 1,
    "FFTrajEncoder.d_model": 16,
    "GRUTrajEncoder.d_hidden": 12,
    "GRUTrajEncoder.d_output": 12,
    "GRUTrajEncoder.n_layers": 1,
    "TformerTrajEncoder.d_model": 16,
    "TformerTrajEncoder.d_ff": 24,
    "TformerTrajEncoder.n_heads": 2,
    "TformerTrajEncoder.n_layers": 1,
    "TformerTrajEncoder.dropout_emb": 0.0,
    "TformerTrajEncoder.dropout_ff": 0.0,
    "Actor.d_hidden": 16,
    "NCritics.d_hidden": 16,
    "NCriticsTwoHot.d_hidden": 16,
    "NCriticsTwoHot.output_bins": 32,
    "Multigammas.discrete": [0.5, 0.9],
    "Multigammas.continuous": [0.5, 0.9],
}
ENCODERS = {"ff": FFTrajEncoder, "gru": GRUTrajEncoder, "transformer": TformerTrajEncoder}


@pytest.fixture(autouse=True)
def clean_gin() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def make_agent() -> Callable[..., Agent]:
    """A small agent for 4 numbers of observation; keyword arguments are the agent's."""

    def make(
        action: ActionSpec | None = None,
        encoder: str = "ff",
        max_seq_len: int = 9,
        cls: type[Agent] = Agent,
        **kwargs,
    ) -> Agent:
        spec = action or ActionSpec("discrete", (3,))
        for key, value in SMALL.items():
            gin.bind_parameter(key, value)
        return cls(
            obs_space={"observation": (4,)},
            rl2_space=(1 + spec.dim,),
            action_space=spec,
            max_seq_len=max_seq_len,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=ENCODERS[encoder],
            **kwargs,
        )

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """Random sequences of the given numbers of timesteps, padded with 4.0, for an action representation."""

    def make(action: ActionSpec | None = None, lengths: tuple[int, ...] = (9, 7, 6), seed: int = 0) -> Batch:
        spec = action or ActionSpec("discrete", (3,))
        generator = torch.Generator().manual_seed(seed)
        rows, steps = len(lengths), max(lengths)

        def actions(*shape: int) -> torch.Tensor:
            if spec.kind == "box":
                return torch.rand(*shape, spec.dim, generator=generator) * 2 - 1
            if spec.kind == "multibinary":
                return (torch.rand(*shape, spec.dim, generator=generator) > 0.5).float()
            parts = [torch.randint(n, shape, generator=generator) for n in spec.sizes]
            hots = [torch.nn.functional.one_hot(p, n) for p, n in zip(parts, spec.sizes, strict=True)]
            return torch.cat(hots, dim=-1).float()

        taken = actions(rows, steps - 1)
        rews = torch.randn(rows, steps - 1, 1, generator=generator)
        rl2s = torch.cat((rews, taken), dim=-1)
        batch = Batch(
            obs={"observation": torch.randn(rows, steps, 4, generator=generator)},
            rl2s=torch.cat((torch.zeros(rows, 1, 1 + spec.dim), rl2s), dim=1),
            rews=rews,
            dones=torch.rand(rows, steps - 1, 1, generator=generator) < 0.1,
            actions=taken,
            time_idxs=torch.arange(steps).view(1, -1, 1).repeat(rows, 1, 1),
            lengths=torch.tensor(lengths),
        )
        for row, length in enumerate(lengths):
            batch.obs["observation"][row, length:] = 4.0
            batch.rl2s[row, length:] = 4.0
            batch.rews[row, length - 1 :] = 4.0
            batch.actions[row, length - 1 :] = 4.0
            batch.dones[row, length - 1 :] = True
        return batch

    return make
