"""amago.nets alone: imitate an expert of a memory task, then play it step by step.

Needs torch, amago-kernels and amago-nets. In each sequence a cue is shown first and noise afterwards, and
the expert's action, which depends on the cue and on the noise now, is asked for at every step. A timestep
encoder, a sequence model chosen by name and an actor head are trained by maximum likelihood; then the same
networks act step by step with a hidden state. Sequence models with memory approach an accuracy of 1;
--traj_encoder ff can only guess the cue, after the first of 16 steps, and stays near 0.3.

    python examples/17_nets_alone.py --traj_encoder rnn
"""

from argparse import ArgumentParser
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amago.nets.actor_critic import Actor
from amago.nets.traj_encoders import get_traj_encoder_cls, list_registered_traj_encoders
from amago.nets.tstep_encoders import FFTstepEncoder

LENGTH, CUES = 16, 4


class Imitator(nn.Module):
    """Networks from observations to a policy."""

    def __init__(self, traj_encoder: str) -> None:
        super().__init__()
        # Spaces can be given as shapes; previous action and reward play no role here.
        self.tstep_encoder = FFTstepEncoder(
            obs_space={"observation": (2 * CUES,)},
            rl2_space=(1 + CUES,),
            d_hidden=64,
            d_output=64,
            n_layers=1,
        )
        self.traj_encoder = get_traj_encoder_cls(traj_encoder)(tstep_dim=64, max_seq_len=LENGTH)
        self.actor = Actor(
            state_dim=self.traj_encoder.emb_dim,
            action_dim=CUES,
            discrete=True,
            gammas=torch.tensor([0.99]),  # a head has one policy for each discount
            d_hidden=64,
        )

    def forward(self, obs: Tensor, time_idxs: Tensor, hidden_state: object = None) -> tuple[Tensor, object]:
        """Observations (B, L, 2 * CUES) to log-probabilities (B, L, CUES), and the next hidden state."""
        rl2s = obs.new_zeros(*obs.shape[:2], 1 + CUES)
        emb = self.tstep_encoder(obs={"observation": obs}, rl2s=rl2s)
        state, hidden_state = self.traj_encoder(emb, time_idxs=time_idxs, hidden_state=hidden_state)
        return self.actor(state).logits.squeeze(2), hidden_state


def make_batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Observations (B, L, 2 * CUES), times (B, L, 1), and the expert's actions (B, L): cue + noise modulo CUES."""
    cue = torch.randint(CUES, (rows, 1))
    noise = torch.randint(CUES, (rows, LENGTH))
    shown_cue = F.one_hot(cue, CUES) * (torch.arange(LENGTH) == 0).view(1, -1, 1)
    obs = torch.cat((shown_cue, F.one_hot(noise, CUES)), dim=-1).float()
    return obs, torch.arange(LENGTH).view(1, -1, 1).expand(rows, -1, -1), (cue + noise) % CUES


@torch.no_grad()
def play(model: Imitator, rows: int) -> float:
    """Accuracy of the most likely action, step by step."""
    model.eval()
    obs, time_idxs, actions = make_batch(rows)
    hidden_state = model.traj_encoder.init_hidden_state(rows, "cpu")
    right = []
    for t in range(LENGTH):
        now = slice(t, t + 1)
        logits, hidden_state = model(obs[:, now], time_idxs[:, now], hidden_state)
        right.append(logits.argmax(-1) == actions[:, now])
    model.train()
    return float(torch.cat(right, dim=1).float().mean())


def main(argv: Sequence[str] | None = None) -> float:
    """Trains; returns the accuracy of playing."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traj_encoder", choices=list_registered_traj_encoders(), default="transformer")
    parser.add_argument("--steps", type=int, default=200, help="updates")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--smoke", action="store_true", help="10 updates")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    model = Imitator(args.traj_encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, (10 if args.smoke else args.steps) + 1):
        obs, time_idxs, actions = make_batch(args.batch_size)
        logits, _ = model(obs, time_idxs)
        loss = F.cross_entropy(logits.flatten(0, 1), actions.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"update {step}: loss {loss.item():.3f}")

    accuracy = play(model, rows=256)
    print(f"accuracy of the {args.traj_encoder} encoder, playing step by step: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
