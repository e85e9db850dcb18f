"""Agents compute through `amago.kernels`: how often a training step and a rollout call each operation, and that no
labels are built for critics that classify.

Calls are counted where backends are entered: each of them is entered again with a counter in front.
"""

import dataclasses
from collections import Counter
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amago import kernels
from amago.agent import Agent, MultiTaskAgent
from amago.kernels.backends import operations, register
from amago.nets.actor_critic import NCriticsTwoHot
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import MambaTrajEncoder, TformerTrajEncoder
from amago.nets.transformer import (
    ClippedSlidingSinkAttention,
    FlashAttention,
    FlexAttention,
    SlidingWindowFlexAttention,
    VanillaAttention,
)
from amago.nets.tstep_encoders import FFTstepEncoder

LAYERS = 3
BINS = 19
BATCH = (9, 7, 6)  # timesteps of each row


@pytest.fixture
def calls():
    """How often each operation has run, whatever its backend; linear layers apart."""
    count, before = Counter(), operations()

    def counted(operation, run):
        def counting(*args, **kwargs):
            count[operation] += 1
            return run(*args, **kwargs)

        return counting

    for operation, implementations in before.items():
        if operation != "linear":
            register(
                operation,
                [dataclasses.replace(impl, run=counted(operation, impl.run)) for impl in implementations],
            )
    yield count
    for operation, implementations in before.items():
        register(operation, implementations)


def near(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < 3


def transformer(attention_type=FlashAttention):
    return partial(
        TformerTrajEncoder,
        d_model=16,
        n_heads=2,
        d_ff=24,
        n_layers=LAYERS,
        dropout_emb=0.0,
        attention_type=attention_type,
    )


mamba = partial(MambaTrajEncoder, d_model=16, n_layers=LAYERS)


def make_agent(cls, encoder, **kwargs):
    torch.manual_seed(0)
    critics = {"critic_type": partial(NCriticsTwoHot, d_hidden=16, output_bins=BINS)}
    return cls(
        obs_space={"observation": (4,)},
        rl2_space=(4,),
        action_space=ActionSpec("discrete", (3,)),
        max_seq_len=9,
        tstep_encoder_type=partial(FFTstepEncoder, d_hidden=16, d_output=12),
        traj_encoder_type=encoder,
        **((critics if cls is MultiTaskAgent else {}) | kwargs),
    )


TWO_HOT = {"two_hot_cross_entropy": 1, "two_hot_mean": 3}  # values of recorded, next and the policy's actions


@pytest.mark.parametrize("log_step", [False, True])
@pytest.mark.parametrize("coefficients", [{}, {"online_coeff": 1.0, "offline_coeff": 0.5}], ids=str)
@pytest.mark.parametrize(("cls", "of_critics"), [(Agent, {}), (MultiTaskAgent, TWO_HOT)])
@pytest.mark.parametrize(
    ("encoder", "of_encoder"),
    [(transformer(), {"attention": LAYERS}), (mamba, {"selective_scan": LAYERS})],
    ids=["transformer", "mamba"],
)
def test_a_training_step_calls_each_operation_once_for_what_it_computes(
    calls, make_batch, encoder, of_encoder, cls, of_critics, coefficients, log_step
):
    agent = make_agent(cls, encoder, **coefficients)
    agent(make_batch(lengths=BATCH), log_step=log_step).backward()
    assert calls == of_encoder | of_critics


def test_labels_of_a_normal_distribution_have_an_operation_of_their_own(calls, make_batch):
    critics = partial(NCriticsTwoHot, d_hidden=16, output_bins=BINS, label_type="hlgauss")
    agent = make_agent(MultiTaskAgent, transformer(), critic_type=critics)
    agent(make_batch(lengths=BATCH), log_step=False).backward()
    assert calls == {"attention": LAYERS, "hl_gauss_cross_entropy": 1, "two_hot_mean": 3}


def test_values_for_filters_decode_each_distribution_once(calls, make_batch):
    make_agent(MultiTaskAgent, transformer()).get_values(make_batch(lengths=BATCH))
    assert calls == {"attention": LAYERS, "two_hot_mean": 2}


KINDS = {
    "flash": (FlashAttention, "attention"),
    "flash with a window": (partial(FlashAttention, window_size=(3, 0)), "attention"),
    "vanilla": (VanillaAttention, "attention"),
    "window": (partial(SlidingWindowFlexAttention, window_size=2), "attention"),
    "sinks": (
        partial(ClippedSlidingSinkAttention, window_size=2, sink_size=2, logit_clip=1.0),
        "attention",
    ),
    "own functions": (partial(FlexAttention, score_mod=None, mask_mod=near), "flex_attention"),
}


@pytest.mark.parametrize(("attention_type", "operation"), KINDS.values(), ids=list(KINDS))
def test_every_kind_of_attention_is_one_call_for_each_layer(calls, make_batch, attention_type, operation):
    agent = make_agent(Agent, transformer(attention_type))
    agent(make_batch(lengths=BATCH), log_step=False).backward()
    assert calls == {operation: LAYERS}
    calls.clear()
    act(agent.eval(), 4)
    assert calls == {f"{operation}_step": 4 * LAYERS}


def act(agent, steps, rows=5):
    """Some steps of a rollout."""
    hidden_state = agent.init_hidden_state(rows, "cpu")
    for step in range(steps):
        obs, rl2s = {"observation": torch.randn(rows, 1, 4)}, torch.randn(rows, 1, 4)
        time = torch.full((rows, 1, 1), step)
        with torch.no_grad():
            _, hidden_state = agent.get_actions(obs, rl2s, time, hidden_state)


@pytest.mark.parametrize("cls", [Agent, MultiTaskAgent])
@pytest.mark.parametrize(
    ("encoder", "operation"),
    [(transformer(), "attention_step"), (mamba, "selective_scan_step")],
    ids=["transformer", "mamba"],
)
def test_a_rollout_by_modules_is_one_call_for_each_step_and_layer(calls, encoder, operation, cls):
    act(make_agent(cls, encoder).eval(), 6)
    assert calls == {operation: 6 * LAYERS}


class Made(TorchDispatchMode):
    """The tensors of at least so many numbers that operators make; those that share memory are one."""

    def __init__(self, least):
        super().__init__()
        self.least = least
        self.tensors = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
        for x in tree_leaves(out):
            if torch.is_tensor(x) and x.numel() >= self.least:
                place = x.untyped_storage().data_ptr()
                if place not in given:
                    self.tensors.setdefault(place, x)  # kept, so that the place is not used again
        return out

    @property
    def dtypes(self):
        return [x.dtype for x in self.tensors.values()]


def made_by_the_loss(cls=NCriticsTwoHot, backend="auto", bins=128, **kwargs):
    """What the critics' loss and its gradient make that is as large as dense labels of all targets."""
    critics = cls(7, 3, torch.tensor([0.5, 0.9]), False, 4, d_hidden=8, output_bins=bins, **kwargs)
    dist = critics(torch.randn(1, 200, 7), torch.rand(1, 1, 200, 2, 3))
    target = 10 * torch.randn(1, 200, 1, 2, 1)
    with kernels.use_backend(backend), Made(target.numel() * bins) as made:
        torch.autograd.grad(critics.cross_entropy(dist, target).sum(), dist.raw_logits)
    return made.dtypes


@pytest.mark.parametrize("label_type", ["twohot", "hlgauss"])
def test_the_loss_of_classifying_critics_makes_their_gradient_and_no_labels(label_type):
    assert made_by_the_loss(label_type=label_type) == [torch.float32]
    in_torch = made_by_the_loss(label_type=label_type, backend="torch")
    assert set(in_torch) == {torch.float32}  # the gradient, and the blocks in which it is computed


def test_dense_labels_would_be_noticed():
    class Dense(NCriticsTwoHot):
        """Two one-hot vectors of int64 for every target."""

        def raw_vals_to_labels(self, raw_td_target):
            place = self.bins.position(raw_td_target.squeeze(-1))
            low = place.floor().long().clamp(max=self.bins.n - 2)
            above = (place - low).unsqueeze(-1)
            return F.one_hot(low, self.bins.n) * (1 - above) + F.one_hot(low + 1, self.bins.n) * above

    made = made_by_the_loss(Dense)
    assert made.count(torch.int64) >= 2
    assert made.count(torch.float32) > 1
