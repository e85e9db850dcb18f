"""Diagnostics of logged batches."""

import numpy as np
import pytest
import torch

from amago.agent import Agent, MultiTaskAgent
from amago.agent.diagnostics import percentiles
from amago.agent.filters import exp_filter
from amago.nets.specs import ActionSpec

AGENTS = pytest.mark.parametrize("cls", [Agent, MultiTaskAgent])
BOX = ActionSpec("box", (2,))
OFFLINE = {"online_coeff": 0.0, "offline_coeff": 1.0}


def logged(agent, batch):
    torch.manual_seed(1)
    agent(batch, log_step=True)
    return agent.update_info


@AGENTS
def test_values_and_targets_are_logged_for_every_discount(make_agent, make_batch, cls):
    torch.manual_seed(0)
    agent = make_agent(BOX, cls=cls, popart=False, gamma=0.8, reward_multiplier=5.0, **OFFLINE).eval()
    batch = make_batch(BOX)
    info = logged(agent, batch)
    q, _ = agent.get_values(batch)  # (B, T, G, 1)
    real = batch.transition_mask.squeeze(-1)
    gammas = [round(gamma, 6) for gamma in agent.gammas.tolist()]
    assert gammas[-1] == 0.8
    for index, gamma in enumerate(gammas):
        expected = q[:, :, index][real].mean() / 5.0
        torch.testing.assert_close(info[f"Mean Q(s, a) gamma={gamma}"], expected)
        assert info["Min TD Target"] <= info[f"Mean TD Target gamma={gamma}"] <= info["Max TD Target"]
    torch.testing.assert_close(info["Mean Q(s, a) gamma=0.8"], info["Mean Q(s, a) (global mean, rescaled)"])
    by_gamma = [value for name, value in info.items() if name.startswith("Mean TD Target gamma")]
    torch.testing.assert_close(torch.stack(by_gamma).mean(), info["Mean TD Target"])


@pytest.mark.parametrize("num_critics", [1, 3])
def test_the_spread_of_the_ensemble_is_the_standard_deviation_over_critics(
    make_agent, make_batch, num_critics
):
    torch.manual_seed(0)
    sizes = {"num_critics": num_critics, "num_critics_td": 1}
    agent = make_agent(BOX, cls=Agent, popart=False, reward_multiplier=1.0, **sizes, **OFFLINE).eval()
    batch = make_batch(BOX)
    spread = logged(agent, batch)["Std of Q(s, a) over the Ensemble"]
    t = agent._encode_transitions(batch, None)
    values = agent._evaluate_recorded(t, None).values[0, :, :, -1, 0].detach().numpy()  # (n, C)
    assert spread.item() == pytest.approx(values.std(axis=1).mean(), rel=1e-5)
    assert (spread.item() == 0.0) == (num_critics == 1)


@AGENTS
def test_shares_and_percentiles_of_advantages(make_agent, make_batch, cls):
    torch.manual_seed(0)
    seen = []

    def at_least_the_median(advantages):
        real = advantages[batch.transition_mask.squeeze(-1)]
        seen.append(real)
        return (advantages >= real.median()).float()

    batch = make_batch(BOX)
    agent = make_agent(BOX, cls=cls, fbc_filter_func=at_least_the_median, **OFFLINE)
    info = logged(agent, batch)
    acting = seen[0][:, -1, 0].numpy()
    assert 0.5 <= info["Filter Approved Share"] < 0.7
    assert info["Share of Positive Advantages"].item() == pytest.approx((acting > 0).mean())
    for percent in (5, 25, 50, 75, 95):
        expected = np.percentile(acting, percent)
        assert info[f"Advantage {percent}th Percentile"].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_filter_without_zeros_approves_everything(make_agent, make_batch):
    info = logged(make_agent(BOX, cls=Agent, fbc_filter_func=exp_filter, **OFFLINE), make_batch(BOX))
    assert info["Filter Approved Share"] == 1.0


def test_the_share_of_sequences_with_a_done_leaves_padding_out(make_agent, make_batch):
    batch = make_batch(BOX)
    batch.dones[batch.transition_mask] = False
    batch.dones[1, 2] = True
    assert logged(make_agent(BOX, cls=Agent), batch)[
        "Share of Sequences with a Done"
    ].item() == pytest.approx(1 / 3)


def test_diagnostics_are_computed_for_logged_batches_only(make_agent, make_batch):
    agent = make_agent(BOX, cls=Agent)
    agent(make_batch(BOX), log_step=False)
    assert agent.update_info == {}


def test_percentiles_of_nothing_are_nan_and_of_much_are_taken_from_a_part():
    assert percentiles(torch.zeros(0), [5, 95]).isnan().all()
    many = torch.linspace(0, 1, 2**24 + 1)
    torch.testing.assert_close(percentiles(many, [5, 50]), torch.tensor([0.05, 0.5]), atol=1e-4, rtol=0)
