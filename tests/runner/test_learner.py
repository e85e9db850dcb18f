"""One optimizer step per `batches_per_update` batches, targets after it, and nothing that is not finite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from amago.agent import Agent, Batch, MultiTaskAgent
from amago.agent.base import BaseAgent
from amago.distributed.processes import Processes, make_accelerator
from amago.experiment.learner import Learner, NonFiniteUpdateError, make_adamw, threads_for
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import IdentityTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.utils import AmagoWarning, get_constant_schedule_with_warmup

pytestmark = pytest.mark.source_only

MakeLearner = Callable[..., Learner]


class LinearAgent(BaseAgent):
    """Regresses rewards on states, which has the same gradient for one big batch as for two halves of it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.head = nn.Linear(self.state_dim, 1)
        self.target_head = nn.Linear(self.state_dim, 1).requires_grad_(False)
        self.order: list[str] = []
        self.hard_sync_targets()

    def hard_sync_targets(self) -> None:
        self.target_head.load_state_dict(self.head.state_dict())

    def soft_sync_targets(self) -> None:
        self.order.append("targets")
        self.hard_sync_targets()

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        predicted = self.head(self.encode_batch(batch)[:, :-1])
        loss = (predicted - batch.rews).square().mean()
        self.update_info = {"Predicted": predicted.mean()} if log_step else {}
        return loss

    def get_actions(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError("this agent only learns")


def make_batch(sequences: int, seed: int, reward: float | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    steps = 5
    rews = torch.randn(sequences, steps, 1, generator=generator)
    return Batch(
        obs={"observation": torch.randn(sequences, steps + 1, 3, generator=generator)},
        rl2s=torch.randn(sequences, steps + 1, 3, generator=generator),
        rews=rews if reward is None else torch.full_like(rews, reward),
        dones=torch.zeros(sequences, steps, 1, dtype=torch.bool),
        actions=torch.zeros(sequences, steps, 2),
        time_idxs=torch.arange(steps + 1).view(1, -1, 1).expand(sequences, -1, -1),
        lengths=torch.full((sequences,), steps + 1),
    )


def join(*batches: Batch) -> Batch:
    def cat(name: str) -> Tensor:
        return torch.cat([getattr(batch, name) for batch in batches])

    return Batch(
        obs={"observation": torch.cat([batch.obs["observation"] for batch in batches])},
        **{name: cat(name) for name in ("rl2s", "rews", "dones", "actions", "time_idxs", "lengths")},
    )


@pytest.fixture
def make_learner(tmp_path: Path, small_nets: None) -> MakeLearner:
    def make(learning_rate: float = 0.01, **changes: Any) -> Learner:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            agent = LinearAgent(
                obs_space={"observation": (3,)},
                rl2_space=(3,),
                action_space=_Discrete(2),
                max_seq_len=8,
                tstep_encoder_type=FFTstepEncoder,
                traj_encoder_type=IdentityTrajEncoder,
            )
        # Statistics of inputs move with every batch, so halves and whole would be normalised differently.
        agent.tstep_encoder.eval()
        options: dict[str, Any] = {
            "grad_clip": 1e6,
            "batches_per_update": 1,
            "autocast": False,
            "compile_loss": False,
            "max_nonfinite": 3,
            "bad_batch_dir": tmp_path / "nonfinite",
            **changes,
        }
        optimizer = make_adamw(agent.trainable_params, learning_rate, 0.0, torch.device("cpu"))
        schedule = get_constant_schedule_with_warmup(optimizer, 0)
        return Learner(agent, optimizer, Processes(make_accelerator()), lr_schedule=schedule, **options)

    return make


class _Discrete:
    """What agents read of a gymnasium Discrete space."""

    def __init__(self, n: int) -> None:
        self.n = n


_Discrete.__name__ = "Discrete"


def weights(learner: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.agent.trainable_params])


def accumulate_wrongly(learner: Learner, batches: list[Batch]) -> None:
    """The fault: gradients are cleared before every batch, so only the last one's reach the optimizer."""
    for batch in batches:
        learner.optimizer.zero_grad()
        (learner.agent(batch, log_step=False) / len(batches)).backward()
    learner.optimizer.step()


def test_accumulated_batches_equal_one_big_batch(make_learner: MakeLearner) -> None:
    halves = [make_batch(4, seed=1), make_batch(4, seed=2)]
    whole, accumulated, faulty = make_learner(), make_learner(batches_per_update=2), make_learner()
    whole.train_batch(join(*halves), log_step=False)
    steps = []
    for half in halves:
        accumulated.train_batch(half, log_step=False)
        steps.append(accumulated.gradient_steps)
    assert steps == [0, 1]
    accumulate_wrongly(faulty, halves)
    assert torch.allclose(weights(accumulated), weights(whole), atol=1e-6)
    assert not torch.allclose(weights(faulty), weights(whole), atol=1e-6)


def test_an_incomplete_update_averages_its_batches(make_learner: MakeLearner) -> None:
    batch = make_batch(4, seed=1)
    whole, incomplete = make_learner(), make_learner(batches_per_update=3)
    whole.train_batch(batch, log_step=False)
    incomplete.train_batch(batch, log_step=False)
    incomplete.finish()
    assert torch.allclose(weights(incomplete), weights(whole), atol=1e-6)
    incomplete.finish()
    assert incomplete.gradient_steps == 1


def test_targets_move_after_the_optimizer_step(make_learner: MakeLearner) -> None:
    learner = make_learner()
    learner.train_batch(make_batch(4, seed=1), log_step=False)
    agent = learner.agent
    assert torch.equal(agent.target_head.weight, agent.head.weight)
    stale = make_learner().agent
    before = stale.head.weight.clone()
    stale.soft_sync_targets()  # the fault: targets first, so they hold the weights from before the step
    assert torch.equal(stale.target_head.weight, before)
    assert not torch.equal(agent.head.weight, before)


def test_gradients_are_clipped_to_the_norm(make_learner: MakeLearner) -> None:
    learner = make_learner(grad_clip=1e-3)
    norms: list[Tensor] = []

    def note(*_: Any) -> None:
        norms.append(
            torch.cat([p.grad.flatten() for p in learner.agent.trainable_params if p.grad is not None]).norm()
        )

    learner.optimizer.register_step_pre_hook(note)
    learner.train_batch(make_batch(4, seed=1, reward=100.0), log_step=False)
    assert norms[0] == pytest.approx(1e-3, rel=1e-3)


def test_logged_norms_are_those_of_the_whole_update_before_clipping(make_learner: MakeLearner) -> None:
    batches = [make_batch(4, seed=1), make_batch(4, seed=2)]
    learner = make_learner(batches_per_update=2, grad_clip=1e-6)
    whole = make_learner()
    for batch in batches:
        metrics = learner.train_batch(batch, log_step=True)
    expected = whole.train_batch(join(*batches), log_step=True)
    for name in ("Grad Norm", "TstepEncoder Grad Norm"):
        assert float(metrics[name]) == pytest.approx(float(expected[name]), rel=1e-4)
    # The faults: the last batch's gradient alone is measured, or what clipping has left of it.
    last = make_learner(batches_per_update=1)
    of_one_batch = last.train_batch(batches[-1], log_step=True)
    assert float(of_one_batch["Grad Norm"]) != pytest.approx(float(expected["Grad Norm"]), rel=1e-2)
    assert float(metrics["Grad Norm"]) > 1e-6


def update_unchecked(learner: Learner, batch: Batch) -> None:
    """The fault: nobody looks at the loss or at the gradients."""
    learner.agent(batch, log_step=False).backward()
    nn.utils.clip_grad_norm_(learner.agent.trainable_params, 1.0)
    learner.optimizer.step()


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_non_finite_update_is_skipped_and_counted(make_learner: MakeLearner, reward: float) -> None:
    learner = make_learner()
    before = weights(learner)
    with pytest.warns(AmagoWarning, match="non-finite"):
        learner.train_batch(make_batch(4, seed=1, reward=reward), log_step=False)
    assert torch.equal(weights(learner), before)
    assert (learner.skipped_updates, learner.gradient_steps) == (1, 1)
    learner.train_batch(make_batch(4, seed=2), log_step=False)
    assert weights(learner).isfinite().all()
    assert not torch.equal(weights(learner), before)
    unchecked = make_learner()
    update_unchecked(unchecked, make_batch(4, seed=1, reward=reward))
    assert not weights(unchecked).isfinite().any()


@pytest.mark.filterwarnings("ignore:an update had a non-finite loss")
def test_too_many_skipped_updates_in_a_row_raise_and_save_the_batch(make_learner: MakeLearner) -> None:
    learner = make_learner(max_nonfinite=3)
    bad = make_batch(2, seed=1, reward=float("nan"))
    for batch in (bad, bad, make_batch(2, seed=2), bad, bad):
        learner.train_batch(batch, log_step=False)
    with pytest.raises(NonFiniteUpdateError, match="3 updates in a row") as raised:
        learner.train_batch(bad, log_step=False)
    saved = load_file(raised.value.path)
    assert saved["0/rews"].isnan().all()
    assert torch.equal(saved["0/obs/observation"], bad.obs["observation"])


def test_a_buffer_of_another_environment_is_an_error_that_names_the_arrays(
    make_experiment: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    experiment = make_experiment(start_collecting_at_epoch=float("inf"))
    fill(experiment.dataset.fifo_folder, 8)
    experiment.start()
    with pytest.raises(ValueError, match="do not fit the environment") as raised:
        experiment.learn()
    for words in (
        "observation 'observation' has shape (2,) in them and (3,) in the environment",
        "dset_name",
    ):
        assert words in str(raised.value)


def test_other_errors_of_the_agent_are_not_changed(make_learner: MakeLearner) -> None:
    learner = make_learner()
    learner.agent.head = nn.Linear(1, 1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        learner.train_batch(make_batch(4, seed=0), log_step=False)


@pytest.mark.parametrize(
    ("network", "timesteps", "cores", "expected"),
    [
        (nn.Linear(64, 256), 1104, 4, 1),
        (nn.Linear(256, 1024), 3072, 4, 2),
        (nn.Linear(256, 1024), 3072, 1, 1),
        (nn.Conv2d(3, 8, 3), 1, 4, 2),
        (nn.Conv2d(3, 8, 3), 1, 1, 1),
        (nn.Embedding(100_000, 64), 1104, 4, 1),  # a look-up multiplies nothing
    ],
    ids=["small", "large", "large-one-core", "convolution", "convolution-one-core", "embedding"],
)
def test_small_layers_take_one_thread_and_others_torchs_number_or_the_available_cores(
    monkeypatch: pytest.MonkeyPatch, network: nn.Module, timesteps: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr("amago.experiment.learner.available_cores", lambda: cores)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads_for(network, timesteps) == expected
    finally:
        torch.set_num_threads(before)


def test_critics_of_every_discount_count_as_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amago.experiment.learner.available_cores", lambda: 2)
    settings: dict[str, Any] = {
        "obs_space": {"observation": (3,)},
        "rl2_space": (3,),
        "action_space": ActionSpec("discrete", (2,), None, None),
        "max_seq_len": 46,
        "tstep_encoder_type": FFTstepEncoder,
        "traj_encoder_type": IdentityTrajEncoder,
    }
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads_for(Agent(**settings), 24 * 46) == 1
        assert threads_for(MultiTaskAgent(**settings), 24 * 46) == 2
    finally:
        torch.set_num_threads(before)
