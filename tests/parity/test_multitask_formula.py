"""MultiTaskAgent's loss and gradients against the same mathematics written out in float64, sequence by sequence.

The labels are dense, nothing is factored, and every critic runs alone. Random draws are the agent's own: its
return head records the samples, and the noise of samples that carry a gradient is drawn again from the same state.
"""

import copy
import math

import gin
import pytest
import torch
import torch.nn.functional as F

from amago.agent import MultiTaskAgent
from amago.agent.return_head import ClassificationHead
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

TEMPERATURE = 0.5
STD_LOW, STD_HIGH = 0.2, 1.5


class RecordingHead(ClassificationHead):
    """Keeps its samples, and the generator's state before each draw."""

    def __init__(self, popart, discrete):
        super().__init__(popart, discrete)
        self.drawn = []

    def policy_actions(self, dist, num_samples, *, grad=False):
        state = torch.get_rng_state()
        samples = super().policy_actions(dist, num_samples, grad=grad)
        self.drawn.append((state, samples.detach().squeeze(1)))  # (K, n, G, A)
        return samples


class RecordingAgent(MultiTaskAgent):
    return_head_type = RecordingHead


def symlog(x):
    return math.copysign(math.log1p(abs(x)), x)


def bin_centres(setting):
    low, high = setting["min_return"], setting["max_return"]
    if setting["use_symlog"]:
        low, high = symlog(low), symlog(high)
    n = setting["output_bins"]
    return torch.tensor([low + (high - low) * j / (n - 1) for j in range(n)], dtype=torch.float64)


def decoded(logits, setting):
    """Expected bin (..., n) -> (...), mapped back to a return."""
    mean = (torch.softmax(logits, -1) * bin_centres(setting)).sum(-1)
    return torch.sign(mean) * (torch.exp(mean.abs()) - 1) if setting["use_symlog"] else mean


def label(target, setting):
    """The dense label of one return, (n,)."""
    centres = bin_centres(setting)
    n, width = len(centres), float(centres[1] - centres[0])
    place = min(max(target, setting["min_return"]), setting["max_return"])
    place = symlog(place) if setting["use_symlog"] else place
    labels = torch.zeros(n, dtype=torch.float64)
    if setting["label_type"] == "twohot":
        j = min(int((place - centres[0].item()) / width), n - 2)
        labels[j + 1] = (place - centres[j].item()) / width
        labels[j] = 1 - labels[j + 1]
        return labels
    spread = setting["sigma"] * width * math.sqrt(2)

    def below(x):
        return 0.5 * (1 + math.erf((x - place) / spread))

    for j in range(n):
        labels[j] = below(centres[j].item() + width / 2) - below(centres[j].item() - width / 2)
    return labels / labels.sum()


def critic_logits(weights, agent, state, action):
    """Logits (L, C, G, n) for states (L, S) and actions (L, G, A)."""
    rows = []
    for c in range(agent.num_critics):
        columns = []
        for g, gamma in enumerate(agent.gammas.double().tolist()):
            horizon = torch.full((len(state), 1), math.log(1 + 1 / max(1 - gamma, 1e-6)), dtype=torch.float64)
            x = torch.cat((state, horizon, action[:, g].clamp(-0.999, 0.999)), -1)
            for name in ("inp_layer", "core_layers.0"):
                x = x @ weights[f"net.{name}.weight"][c] + weights[f"net.{name}.bias"][0, 0, c]
                x = torch.where(x > 0, x, 0.01 * x)
            columns.append(
                x @ weights["net.output_layer.weight"][c] + weights["net.output_layer.bias"][0, 0, c]
            )
        rows.append(torch.stack(columns, 1))
    return torch.stack(rows, 1)


def policy(actor, state):
    """log-probabilities (L, G, A), or means and standard deviations of the unsquashed normals."""
    x = actor.base(state).view(len(state), actor.num_gammas, -1)
    if actor.discrete:
        return torch.log(torch.softmax(x, -1))
    loc, raw = x.chunk(2, -1)
    return loc, STD_LOW * (STD_HIGH / STD_LOW) ** ((torch.tanh(raw) + 1) / 2)


def drawn_again(agent, dist, draw):
    """Samples (K, L, G, A) of the policy with their gradients, from the noise that the agent's own came from."""
    state, samples = draw
    shape = (samples.shape[0], 1, *samples.shape[1:])
    torch.set_rng_state(state)
    if agent.discrete:
        noise = -torch.empty(shape).exponential_().log().squeeze(1).double()
        soft = torch.softmax((dist + noise) / TEMPERATURE, -1)
        hard = F.one_hot(soft.argmax(-1), samples.shape[-1]).double()
        actions = hard - soft.detach() + soft
    else:
        noise = torch.normal(torch.zeros(shape), torch.ones(shape)).squeeze(1).double()
        actions = torch.tanh(dist[0] + dist[1] * noise)
    torch.testing.assert_close(actions.detach(), samples.double(), atol=1e-5, rtol=1e-4)
    return actions


def log_prob(agent, dist, taken):
    """(L, G) of recorded actions (L, A)."""
    if agent.discrete:
        return (dist * taken[:, None]).sum(-1)
    loc, std = dist
    inside = taken.clamp(-0.99, 0.99)[:, None]
    u = torch.atanh(inside)
    normal = -0.5 * ((u - loc) / std) ** 2 - torch.log(std) - 0.5 * math.log(2 * math.pi)
    return (normal - torch.log(1 - inside**2)).sum(-1)


def n_step_targets(agent, rewards, dones, values):
    """(T, G) of one sequence."""
    gammas, steps = agent.gammas.double(), len(rewards)
    targets = torch.zeros_like(values)
    for t in range(steps):
        for i in range(min(agent.n_step, steps - t)):
            targets[t] += gammas**i * rewards[t + i]
            if dones[t + i]:
                break
            if i + 1 == min(agent.n_step, steps - t):
                targets[t] += gammas ** (i + 1) * values[t + i]
    return targets


def moved(popart, targets):
    """mu and sigma (G,) after one update with targets (n, G)."""
    mu, nu = popart.mu[:, 0].double(), popart.nu[:, 0].double()
    if not popart.enabled:
        return torch.zeros_like(mu), torch.ones_like(mu)
    t = popart._t[:, 0].double() + 1
    step = popart.beta / (1 - (1 - popart.beta) ** t)
    mu = (1 - step) * mu + step * targets.mean(0)
    nu = (1 - step) * nu + step * (targets**2).mean(0)
    return mu, (nu - mu**2).sqrt().clamp(1e-4, 1e6)


def written_out(agent, batch, setting, drawn):
    """The total loss; critics of every target are all of them, so the subset is not drawn."""
    states, _ = agent.get_state_embedding(batch.obs, batch.rl2s, batch.time_idxs)
    own = dict(agent.critics.named_parameters())
    frozen = {name: p.detach() for name, p in own.items()}
    target_net = dict(agent.target_critics.named_parameters())
    s, after, taken, targets, first = [], [], [], [], 0
    for b, length in enumerate(batch.lengths.tolist()):
        steps = length - 1
        s.append(states[b, :steps])
        taken.append(batch.actions[b, :steps])
        following = states[b, 1:length].detach()
        with torch.no_grad():
            actions = drawn[0][1][:, first : first + steps].double()
            values = torch.stack(
                [decoded(critic_logits(target_net, agent, following, a), setting) for a in actions]
            )
            values = values.mean(0)  # (T, C, G)
            after = values.amin(1) if agent.online_coeff > 0 else values.mean(1)
            rewards = agent.reward_multiplier * batch.rews[b, :steps]
            targets.append(n_step_targets(agent, rewards, batch.dones[b, :steps], after))
        first += steps
    s, taken, targets = torch.cat(s), torch.cat(taken), torch.cat(targets)
    mu, sigma = moved(agent.popart, targets)
    seen = taken
    if agent.discrete:
        seen = taken.clamp(1e-3, 0.99)
        seen = seen / seen.sum(-1, keepdim=True)
    logits = critic_logits(own, agent, s, seen.unsqueeze(1).expand(-1, len(agent.gammas), -1))
    labels = torch.stack([torch.stack([label(y, setting) for y in row]) for row in targets.tolist()])
    critic_loss = -(labels.unsqueeze(1) * torch.log_softmax(logits, -1)).sum(-1)  # (n, C, G)
    critic_loss = critic_loss.sum() / (critic_loss.numel() + 1e-5)

    dist = policy(agent.actor, s)
    online = torch.zeros_like(targets)
    actions = drawn_again(agent, dist, drawn[1]) if agent.online_coeff > 0 else drawn[1][1].double()
    values = torch.stack([decoded(critic_logits(frozen, agent, s.detach(), a), setting) for a in actions])
    if agent.online_coeff > 0:
        online = -((values - mu) / sigma).amin(2).mean(0)
    advantage = (decoded(logits, setting).mean(1) - values.mean(0).mean(1)).detach()
    offline = -(advantage > 0).double() * log_prob(agent, dist, taken)
    actor_loss = agent.online_coeff * online + agent.offline_coeff * offline
    return actor_loss.sum() / (actor_loss.numel() + 1e-5) + agent.critic_loss_weight * critic_loss


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("label_type", ["twohot", "hlgauss"])
@pytest.mark.parametrize(
    "coefficients",
    [{"online_coeff": 0.0, "offline_coeff": 1.0}, {"online_coeff": 0.8, "offline_coeff": 0.5}],
    ids=["offline", "online"],
)
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_loss_and_gradients_equal_the_formula(
    draw, random_batch, same_update, kind, coefficients, label_type, seed
):
    d = draw(seed + 100)
    spec = ActionSpec(kind, (d.size(2, 5),))
    setting = {
        "min_return": -d.size(1, 60) - 0.5,
        "max_return": d.size(1, 60) + 0.25,
        "output_bins": d.size(8, 40),
        "use_symlog": bool(d.size(0, 1)),
        "label_type": label_type,
        "sigma": d.choice([0.75, 1.5]),
    }
    gin.parse_config(
        [f"NCriticsTwoHot.{name} = {value!r}" for name, value in setting.items()]
        + [f"TanhGaussian.std_low = {STD_LOW}", f"TanhGaussian.std_high = {STD_HIGH}"]
        + [f"Multigammas.{kind} = {[0.3, 0.95][: d.size(0, 2)]}" for kind in ("discrete", "continuous")]
        + [f"{part} = {d.size(6, 12)}" for part in ("FFTstepEncoder.d_output", "FFTstepEncoder.d_hidden")]
        + [f"{part} = {d.size(6, 12)}" for part in ("FFTrajEncoder.d_model", "Actor.d_hidden")]
        + [f"{part} = {d.size(6, 12)}" for part in ("GRUTrajEncoder.d_output", "NCriticsTwoHot.d_hidden")]
    )
    critics, timesteps, rows = d.size(1, 3), d.size(3, 9), d.size(1, 4)
    agent = RecordingAgent(
        obs_space={"a": (3,), "b": (2, 2)},
        rl2_space=(1 + spec.dim,),
        action_space=spec,
        max_seq_len=timesteps,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder if seed % 2 else FFTrajEncoder,
        num_critics=critics,
        num_critics_td=critics,
        n_step=d.choice([1, 2, 3, 5]),
        popart=bool(d.size(0, 1)),
        reward_multiplier=d.choice([1.0, 10.0]),
        num_actions_for_value_in_critic_loss=d.size(1, 2),
        num_actions_for_value_in_actor_loss=d.size(1, 3),
        **coefficients,
    )
    for target in (*agent.target_actor.parameters(), *agent.target_critics.parameters()):
        target.data += 0.1 * d.normal(*target.shape)
    agent.tstep_encoder.eval()  # running statistics stand still, so that both see the same inputs
    batch = random_batch(spec, rows, timesteps)
    exact = copy.deepcopy(agent).double()
    ours = agent(batch, log_step=False)
    wide = batch.map(lambda x: x.double() if x.is_floating_point() else x)
    plain = written_out(exact, wide, setting, agent.return_head.drawn)
    same_update(agent, ours, exact, plain)
