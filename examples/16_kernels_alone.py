"""amago.kernels in a training loop of your own: needs torch and amago-kernels, and nothing else of amago.

A small network reads numbers whose scale, between 1 and 1000, only the first position tells, and predicts
their sum over the last 16 positions. Shows attention with a window and a sink (the first position, which
stays visible), a linear layer fused with its activation, classification of scalars over a wide range
without building labels, and the same network step by step with a ring buffer of keys and values, as in a
rollout. The last line of the output compares the two.

    python examples/16_kernels_alone.py
"""

from argparse import ArgumentParser
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from amago import kernels

LENGTH, WINDOW = 64, 16  # positions; W below is WINDOW
HEADS, HEAD_DIM = 4, 16
WIDTH = HEADS * HEAD_DIM
BINS = kernels.Bins(low=-1.0, high=20_000.0, n=128)  # evenly spaced in symlog


class Summing(nn.Module):
    """A Transformer layer and a classifier over BINS: (B, L, 2) to logits (B, L, 128)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.hidden = nn.Linear(2 * WIDTH, 4 * WIDTH)
        self.logits = nn.Linear(4 * WIDTH, BINS.n)

    def forward(self, x: Tensor, cache: kernels.RingCache | None = None) -> Tensor:
        """Whole sequences, or with a cache the next position of each: (B, 1, 2)."""
        x = self.embed(x)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(-3)  # (B, L, H, D) each
        if cache is None:
            seen = kernels.attention(q, k, v, window=WINDOW - 1, sink=1)
        else:
            seen = kernels.attention_step(q, k, v, cache, window=WINDOW - 1, sink=1)
            cache.advance()
        x = torch.cat((x, seen.flatten(-2)), dim=-1)
        return self.logits(kernels.linear(x, self.hidden.weight, self.hidden.bias, leaky=0.01))


def make_batch(rows: int) -> tuple[Tensor, Tensor]:
    """Inputs (B, L, 2), a number in [0, 1] and at first the scale, and targets (B, L)."""
    log_scale = torch.rand(rows, 1) * 3.0
    numbers = torch.rand(rows, LENGTH)
    padded = nn.functional.pad(numbers, (WINDOW - 1, 0))
    targets = 10.0**log_scale * padded.unfold(1, WINDOW, 1).sum(-1)
    hints = nn.functional.pad(log_scale, (0, LENGTH - 1))
    return torch.stack((numbers, hints), dim=-1), targets


def relative_error(logits: Tensor, targets: Tensor) -> float:
    """Median of |prediction - target| / target."""
    return float(((kernels.two_hot_mean(logits, BINS) - targets).abs() / targets).median())


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Trains; returns the relative error before and after."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="updates")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--smoke", action="store_true", help="50 updates")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    model = Summing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    inputs, targets = make_batch(256)
    with torch.no_grad():
        before = relative_error(model(inputs), targets)
    for step in range(1, (50 if args.smoke else args.steps) + 1):
        batch, batch_targets = make_batch(args.batch_size)
        loss = kernels.two_hot_cross_entropy(model(batch), batch_targets, BINS).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"update {step}: loss {loss.item():.3f}")

    with torch.no_grad():
        logits = model(inputs)
        after = relative_error(logits, targets)
        cache = kernels.RingCache.empty(len(inputs), LENGTH, HEADS, HEAD_DIM)
        stepwise = torch.cat([model(inputs[:, t : t + 1], cache) for t in range(LENGTH)], dim=1)
    torch.testing.assert_close(stepwise, logits, atol=1e-3, rtol=1e-3)
    print(
        f"relative error: {before:.3f} before training, {after:.3f} after; step by step the logits are the same"
    )
    return before, after


if __name__ == "__main__":
    main()
