"""The agent's loss and gradients against the same mathematics written out, unfactored and in float64."""

import copy

import gin
import pytest
import torch
import torch.nn.functional as F

from amago.agent import Agent
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

AUXILIARY = [0.3, 0.95]


@pytest.fixture(autouse=True)
def small_networks():
    gin.clear_config()
    for key, value in {
        "FFTstepEncoder.d_hidden": 10,
        "FFTstepEncoder.d_output": 9,
        "FFTrajEncoder.d_model": 8,
        "GRUTrajEncoder.d_hidden": 7,
        "GRUTrajEncoder.d_output": 6,
        "Actor.d_hidden": 11,
        "NCritics.d_hidden": 12,
        "Multigammas.discrete": AUXILIARY,
        "Multigammas.continuous": AUXILIARY,
        "TanhGaussian.std_low": 1e-9,
        "TanhGaussian.std_high": 1.1e-9,
    }.items():
        gin.bind_parameter(key, value)
    yield
    gin.clear_config()


def critic(agent, state, action):
    """Values (L, C, G) of one sequence: the networks' layers, one critic at a time."""
    net, gammas = agent.critics.net, agent.gammas.double()
    values = []
    for c in range(agent.num_critics):
        if agent.discrete:
            x = state
        else:
            horizon = torch.log1p(1.0 / (1.0 - gammas))
            g = horizon.view(1, -1, 1).expand(len(state), -1, 1)
            wide = state.unsqueeze(1).expand(-1, len(gammas), -1)
            x = torch.cat((wide, g, action.clamp(-0.999, 0.999)), dim=-1)
        for layer in (net.inp_layer, *net.core_layers):
            x = F.leaky_relu(x @ layer.weight[c] + layer.bias[0, 0, c])
        x = x @ net.output_layer.weight[c] + net.output_layer.bias[0, 0, c]
        by_action = agent.discrete
        values.append((x.view(len(state), len(gammas), -1) * action).sum(-1) if by_action else x.squeeze(-1))
    return torch.stack(values, dim=1)


def policy(actor, state):
    """Probabilities, or means of a policy without noise: (L, G, A)."""
    x = actor.base(state).view(len(state), actor.num_gammas, -1)
    return torch.softmax(x, -1) if actor.discrete else torch.tanh(x.chunk(2, -1)[0])


def moved(popart, targets):
    """mu, sigma, w and b (G,) after one update with the targets (n, G) of all real transitions."""
    mu, nu, w, b, t = (x[:, 0].double() for x in (popart.mu, popart.nu, popart.w, popart.b, popart._t))
    sigma = (nu - mu**2).sqrt()
    step = popart.beta / (1 - (1 - popart.beta) ** (t + 1))
    new_mu = (1 - step) * mu + step * targets.mean(0)
    new_sigma = ((1 - step) * nu + step * (targets**2).mean(0) - new_mu**2).sqrt()
    return new_mu, new_sigma, w * sigma / new_sigma, (sigma * b + mu - new_mu) / new_sigma


def as_returns(popart, raw):
    """Raw outputs (..., G) in units of returns, by the statistics before the update."""
    if not popart.enabled:
        return raw
    mu, nu, w, b = (x[:, 0].double() for x in (popart.mu, popart.nu, popart.w, popart.b))
    return (nu - mu**2).sqrt() * (w * raw + b) + mu


def sequence_targets(agent, batch, b, following):
    """n-step targets (T, G) of one sequence, with all critics in every target."""
    gammas, steps = agent.gammas.double(), len(following)
    raw = critic_of(agent.target_critics, agent, following, policy(agent.target_actor, following))
    after = as_returns(agent.popart, raw)
    after = after.amin(1) if agent.online_coeff > 0 else after.mean(1)  # (T, G)
    rewards, dones = agent.reward_multiplier * batch.rews[b, :steps], batch.dones[b, :steps].double()
    targets = torch.zeros_like(after)
    for t in range(steps):
        for i in range(agent.n_step):
            targets[t] += gammas**i * rewards[t + i]
            end = t + i + 1 == steps or i + 1 == agent.n_step
            if dones[t + i] or end:
                targets[t] += (1 - dones[t + i]) * gammas ** (i + 1) * after[t + i]
                break
    return targets


def written_out(agent, batch):
    """The total loss by a walk over sequences and steps."""
    states, _ = agent.get_state_embedding(batch.obs, batch.rl2s, batch.time_idxs)
    gammas, real = agent.gammas.double(), [length - 1 for length in batch.lengths.tolist()]
    with torch.no_grad():
        following = [states[b, 1 : steps + 1] for b, steps in enumerate(real)]
        targets = [sequence_targets(agent, batch, b, x) for b, x in enumerate(following)]
        mu, sigma, w, shift = 0.0, 1.0, 1.0, 0.0
        if agent.popart.enabled:
            mu, sigma, w, shift = moved(agent.popart, torch.cat(targets))
    actor_terms, critic_terms = [], []
    for b, steps in enumerate(real):
        s, taken = states[b, :steps], batch.actions[b, :steps]
        seen = (
            taken.clamp(1e-3, 0.99) / taken.clamp(1e-3, 0.99).sum(-1, keepdim=True)
            if agent.discrete
            else taken
        )
        q = critic(agent, s, seen.unsqueeze(1).expand(-1, len(gammas), -1))  # (T, C, G)
        critic_terms.append((w * q + shift - ((targets[b] - mu) / sigma).unsqueeze(1)) ** 2)
        pi = policy(agent.actor, s)
        detached = {name: p.detach() for name, p in agent.critics.named_parameters()}
        values = torch.func.functional_call(
            WholeCritic(agent), {f"c.{k}": v for k, v in detached.items()}, (s.detach(), pi)
        )
        advantage = (q.mean(1) - values.mean(1)).detach()
        if agent.discrete:
            logp = (
                torch.log(pi)
                .gather(-1, taken.argmax(-1).view(-1, 1, 1).expand(-1, len(gammas), 1))
                .squeeze(-1)
            )
            imitation = -(advantage > 0).double() * logp
        else:
            imitation = torch.zeros_like(advantage)
        online = -(w * values + shift).amin(1)
        actor_terms.append(agent.online_coeff * online + agent.offline_coeff * imitation)
    g, c = len(gammas), agent.num_critics
    actor_loss = torch.cat(actor_terms).sum() / (sum(real) * g + 1e-5)
    critic_loss = torch.cat(critic_terms).sum() / (sum(real) * g * c + 1e-5)
    return actor_loss + agent.critic_loss_weight * critic_loss


class WholeCritic(torch.nn.Module):
    """`critic` as a module, so that its weights can be replaced by detached ones."""

    def __init__(self, agent):
        super().__init__()
        self.c = agent.critics
        object.__setattr__(self, "agent", agent)

    def forward(self, state, action):
        return critic(self.agent, state, action)


def critic_of(critics, agent, state, action):
    """`critic` with the networks of another ensemble."""
    own, agent.critics = agent.critics, critics
    try:
        return critic(agent, state, action)
    finally:
        agent.critics = own


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("popart", [False, True], ids=["raw", "popart"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    ("spec", "coefficients"),
    [
        (ActionSpec("discrete", (4,)), {"online_coeff": 0.7, "offline_coeff": 0.4}),
        (ActionSpec("discrete", (3,)), {"online_coeff": 0.0, "offline_coeff": 1.0}),
        (ActionSpec("box", (2,)), {"online_coeff": 1.0, "offline_coeff": 0.0}),
    ],
    ids=["discrete", "discrete-offline", "box"],
)
def test_loss_and_gradients_equal_the_formula(
    random_batch, same_update, spec, coefficients, n_step, popart, seed
):
    torch.manual_seed(seed)
    rows, timesteps = 2 + seed, 6 + 2 * seed
    agent = Agent(
        obs_space={"a": (3,), "b": (2, 2)},
        rl2_space=(1 + spec.dim,),
        action_space=spec,
        max_seq_len=timesteps,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder if seed % 2 else FFTrajEncoder,
        num_critics=3,
        num_critics_td=3,
        n_step=n_step,
        popart=popart,
        **coefficients,
    )
    agent.popart.mu += torch.randn_like(agent.popart.mu)  # as in the middle of a run
    agent.popart.b += 0.3 * torch.randn_like(agent.popart.b)
    agent.popart._t += 40.0
    for target in (*agent.target_actor.parameters(), *agent.target_critics.parameters()):
        target.data += 0.1 * torch.randn_like(target)
    agent.tstep_encoder.eval()  # running statistics stand still, so that both see the same inputs
    batch = random_batch(spec, rows, timesteps)
    exact = copy.deepcopy(agent).double()
    ours = agent(batch, log_step=False)
    plain = written_out(exact, batch.map(lambda x: x.double() if x.is_floating_point() else x))
    same_update(agent, ours, exact, plain)
