"""Every kind of self-attention, alone and inside a Transformer, against one formula in float64.

The formula sees a whole history. Row b's query at step t looks back to step `first[b, t]`: 0 in training; in a
rollout the beginning of the episode or of the window, whichever is later. Positions count from there.
"""

import copy
import math
from types import MappingProxyType
from typing import NamedTuple

import gin
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amago.nets import transformer
from amago.nets.traj_encoders import TformerTrajEncoder

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
CLOSE_GRAD = {"atol": 1e-4, "rtol": 1e-3}
WINDOW = 5  # steps that a rollout remembers


class Kind(NamedTuple):
    """A class of attention, its arguments, and what it does to the score of head h at positions i and j."""

    make: type
    kwargs: dict = MappingProxyType({})
    sees: object = lambda h, i, j: j <= i
    score: object = lambda s, h, i, j: s


class Alibi(transformer.FlexAttention):
    """Scores that fall with distance, at a rate of each head's own that is learned."""

    def __init__(self, causal=True, dropout=0.0):
        super().__init__(self.fall, None, causal, dropout)
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.1, 0.9, 0.3]))

    def fall(self, score, b, h, q_idx, kv_idx):
        return score - self.slopes[h] * (q_idx - kv_idx).abs()


class Blocks(transformer.FlexAttention):
    """Sees its own block of three steps, and every fourth step (the last head); scores shrink from step 2 on."""

    def __init__(self, causal=True, dropout=0.0):
        def mask_mod(b, h, q_idx, kv_idx):
            return (q_idx // 3 == kv_idx // 3) | ((kv_idx % 4 == 0) & (h == 1))

        def score_mod(score, b, h, q_idx, kv_idx):
            return torch.where(kv_idx >= 2, score * 0.5, score)

        super().__init__(score_mod, mask_mod, causal, dropout)


class Parity(transformer.FlexAttention):
    """Sees the steps at an even distance."""

    def __init__(self, causal=True, dropout=0.0):
        super().__init__(None, lambda b, h, q, kv: (q - kv) % 2 == 0, causal, dropout)


SLOPES = torch.tensor([0.5, 0.1, 0.9, 0.3], dtype=torch.float64)
SINKS = {"window_size": 2, "logit_clip": 0.4, "sink_size": 2, "sink_bias": 0.3}
KINDS = {
    "vanilla": Kind(transformer.VanillaAttention),
    "flash": Kind(transformer.FlashAttention),
    "flash window": Kind(
        transformer.FlashAttention, {"window_size": (2, 0)}, lambda h, i, j: (j <= i) & (i - j <= 2)
    ),
    "vanilla flex": Kind(transformer.VanillaFlexAttention),
    "sliding": Kind(
        transformer.SlidingWindowFlexAttention, {"window_size": 3}, lambda h, i, j: (j <= i) & (i - j <= 3)
    ),
    "sinks": Kind(
        transformer.ClippedSlidingSinkAttention,
        SINKS,
        lambda h, i, j: (j <= i) & ((i - j <= 2) | (j < 2)),
        lambda s, h, i, j: (s + 0.3 * (j < 2)).clamp(-0.4, 0.4),
    ),
    "alibi": Kind(Alibi, score=lambda s, h, i, j: s - SLOPES[h] * (i - j)),
    "blocks": Kind(
        Blocks,
        sees=lambda h, i, j: (j <= i) & ((i // 3 == j // 3) | ((j % 4 == 0) & (h == 1))),
        score=lambda s, h, i, j: torch.where(j >= 2, s / 2, s),
    ),
    "parity": Kind(Parity, sees=lambda h, i, j: (j <= i) & ((i - j) % 2 == 0)),
}
kinds = pytest.mark.parametrize("name", KINDS)


def formula(kind, qkv, first=None):
    """(B, L, 3, H, D) -> (B, L, H, D) in float64; `first` (B, L) as in the module's docstring."""
    q, k, v = qkv.double().unbind(2)
    rows, length, heads, dim = q.shape
    step = torch.arange(length)
    first = torch.zeros(rows, length, dtype=torch.int64) if first is None else first
    first = first.view(rows, 1, length, 1)
    i, j = step.view(1, 1, -1, 1) - first, step - first  # (B, 1, L, 1) and (B, 1, L, L)
    h = torch.arange(heads).view(1, -1, 1, 1)
    scores = kind.score(torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(dim), h, i, j)
    scores = scores.masked_fill(~(kind.sees(h, i, j) & (j >= 0)), -math.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def first_steps(length, window, ended):
    """(B, L): where each query's window begins, given the steps (t, row) after which rows were reset."""
    first = torch.zeros(ROWS, length, dtype=torch.int64)
    for t, row in ended:
        first[row, t + 1 :] = t + 1
    return torch.maximum(first, torch.arange(length) - window + 1)


ROWS = 3
ENDED = [(1, 0), (3, 1), (9, 1), (12, 0), (12, 2)]  # (step, row): episodes shorter and longer than the window


def steps_through_cache(attention, qkv, window, ended=(), dtype=torch.float32):
    rows, length, _, heads, dim = qkv.shape
    keys, values = torch.randn(2, rows, window, heads, dim, dtype=dtype).unbind(0)  # what was there before
    steps, outs = torch.zeros(rows, dtype=torch.int64), []
    for t in range(length):
        with torch.no_grad():
            outs.append(attention(qkv[:, t : t + 1], keys, values, steps))
        steps += 1
        for _, row in (e for e in ended if e[0] == t):
            steps[row] = 0
    return torch.cat(outs, dim=1)


def made(name, **kwargs):
    return KINDS[name].make(causal=True, dropout=0.0, **KINDS[name].kwargs, **kwargs)


LAYOUTS = {
    "heads fastest": lambda b, length, h, d: torch.randn(b, length, 3, d, h).transpose(-1, -2),
    "one row for all": lambda b, length, h, d: torch.randn(1, length, 3, h, d).expand(b, -1, -1, -1, -1),
}


@kinds
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_sequences_and_their_gradients_equal_the_formula(name, layout, training):
    torch.manual_seed(len(name) + 10 * len(layout))
    for length in (1, 2, 7, 33):
        rows, heads, dim = (int(torch.randint(1, 4, ()).item()) for _ in range(3))
        qkv = LAYOUTS[layout](rows, length, heads, 8 * (2 * dim - 1)).requires_grad_()
        exact = qkv.detach().double().requires_grad_()
        out, expected = made(name).train(training)(qkv), formula(KINDS[name], exact)
        torch.testing.assert_close(out.double(), expected, **CLOSE)
        direction = torch.randn_like(out)
        grad = torch.autograd.grad(out, qkv, direction)[0]
        expected_grad = torch.autograd.grad(expected, exact, direction.double())[0]
        torch.testing.assert_close(grad.double(), expected_grad, **CLOSE_GRAD)


@kinds
@pytest.mark.parametrize("seed", range(2))
def test_steps_through_the_cache_equal_the_formula(name, seed):
    torch.manual_seed(seed)
    heads, dim = int(torch.randint(1, 5, ()).item()), 8 * int(torch.randint(1, 6, ()).item())
    window = int(torch.randint(1, 8, ()).item())
    qkv = LAYOUTS["heads fastest"](ROWS, 19, heads, dim)
    steps = steps_through_cache(made(name).eval(), qkv, window, ENDED)
    expected = formula(KINDS[name], qkv, first_steps(19, window, ENDED))
    torch.testing.assert_close(steps.double(), expected, **CLOSE)


class Formula(transformer.SelfAttention):
    """The formula as an attention of its own, to build a Transformer in float64 with."""

    kind: Kind
    first = None

    def forward(self, qkv, key_cache=None, val_cache=None, cache_seqlens=None):
        return formula(self.kind, qkv, self.first)


@pytest.fixture(autouse=True)
def learned_positions(clean_gin):
    gin.bind_parameter("LearnablePosEmb.max_time_idx", 64)


def encoder_and_twin(name, pos_emb, training, first=None):
    """A Transformer with the kind of attention, and the same one in float64 with the formula in its place."""
    kind = KINDS[name]
    torch.manual_seed(0)
    encoder = TformerTrajEncoder(
        5,
        WINDOW,
        d_model=48,
        n_heads=2,
        d_ff=24,
        n_layers=2,
        dropout_ff=0.0,
        dropout_emb=0.0,
        pos_emb=pos_emb,
        attention_type=lambda causal, dropout: kind.make(causal=causal, dropout=dropout, **kind.kwargs),
    ).train(training)
    twin = copy.deepcopy(encoder).double()
    for layer in twin.tformer.layers:
        exact = Formula()
        exact.kind, exact.first = kind, first
        layer.attention_layer.self_attention = exact
    return encoder, twin


@kinds
@pytest.mark.parametrize("pos_emb", ["fixed", "rope"])
def test_a_rollout_past_the_window_with_resets_equals_the_formula(name, pos_emb):
    encoder, twin = encoder_and_twin(name, pos_emb, False, first_steps(19, WINDOW, ENDED))
    xs, times, hidden, outs = torch.randn(ROWS, 19, 5), [], encoder.init_hidden_state(ROWS, "cpu"), []
    now = torch.zeros(ROWS, 1, 1, dtype=torch.int64)
    for t in range(19):
        with torch.no_grad():
            out, hidden = encoder(xs[:, t : t + 1], time_idxs=now, hidden_state=hidden)
        outs.append(out)
        times.append(now.clone())
        dones = torch.tensor([(t, row) in ENDED for row in range(ROWS)])
        hidden = encoder.reset_hidden_state(hidden, dones)
        now = torch.where(dones.view(-1, 1, 1), 0, now + 1)
    expected = twin(xs.double(), torch.cat(times, dim=1))[0]
    torch.testing.assert_close(torch.cat(outs, dim=1).double(), expected, **CLOSE)


@pytest.mark.parametrize("cls", ["SlidingWindowFlexAttention", "ClippedSlidingSinkAttention"])
def test_the_golden_numbers_hold_over_sequences_and_step_by_step(torch_golden, cls):
    args, tensors, _ = torch_golden(f"attention_{cls}")
    attention = getattr(transformer, cls)(causal=True, dropout=0.0, **args["kwargs"])
    torch.testing.assert_close(attention(tensors["qkv"]), tensors["y"], **CLOSE)
    steps = steps_through_cache(attention.eval(), tensors["qkv"], window=tensors["qkv"].shape[1])
    torch.testing.assert_close(steps, tensors["y"], **CLOSE)


@pytest.mark.parametrize(
    ("causal", "window_size", "sees"),
    [
        (True, (-1, -1), lambda i, j: j <= i),
        (True, (2, 0), lambda i, j: (j <= i) & (i - j <= 2)),
        (True, (2, 3), lambda i, j: (j <= i) & (i - j <= 2)),
        (True, (0, -1), lambda i, j: j == i),
        (True, (-1, 4), lambda i, j: j <= i),
        (False, (-1, -1), lambda i, j: j == j + 0 * i),
        (False, (2, 2), lambda i, j: (i - j).abs() <= 2),
        (False, (3, 0), lambda i, j: (j <= i) & (i - j <= 3)),
        (False, (-1, 0), lambda i, j: j <= i),
    ],
)
def test_flash_attention_sees_its_window(causal, window_size, sees):
    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3, 2, 8)
    attention = transformer.FlashAttention(causal=causal, dropout=0.0, window_size=window_size)
    kind = Kind(transformer.FlashAttention, sees=lambda h, i, j: sees(i, j))
    torch.testing.assert_close(attention(qkv).double(), formula(kind, qkv), **CLOSE)
    # In a rollout there is nothing to the right of a step yet.
    kind = Kind(transformer.FlashAttention, sees=lambda h, i, j: (j <= i) & sees(i, j))
    steps = steps_through_cache(attention, qkv, window=9)
    torch.testing.assert_close(steps.double(), formula(kind, qkv), **CLOSE)


def test_kinds_that_are_not_causal_see_both_ways():
    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3, 2, 8)
    attention = transformer.SlidingWindowFlexAttention(causal=False, dropout=0.0, window_size=2)
    kind = Kind(type(attention), sees=lambda h, i, j: (i - j).abs() <= 2)
    torch.testing.assert_close(attention(qkv).double(), formula(kind, qkv), **CLOSE)
    attention = transformer.FlexAttention(None, lambda b, h, q, kv: kv > q - 3, causal=False)
    kind = Kind(type(attention), sees=lambda h, i, j: j > i - 3)
    torch.testing.assert_close(attention(qkv).double(), formula(kind, qkv), **CLOSE)


@kinds
def test_dropout_of_attention_weights_acts_in_training_alone_and_keeps_the_mean(name):
    torch.manual_seed(0)
    qkv = torch.randn(1, 5, 3, 2, 8)
    exact = made(name)(qkv)
    attention = KINDS[name].make(causal=True, dropout=0.3, **KINDS[name].kwargs).train()
    draws = torch.stack([attention(qkv.expand(500, -1, -1, -1, -1)).mean(0) for _ in range(4)]).mean(0)
    torch.testing.assert_close(draws, exact[0], atol=0.15, rtol=0.0)
    assert not torch.equal(attention(qkv), attention(qkv))
    torch.testing.assert_close(attention.eval()(qkv), exact)


class CountBytes(TorchDispatchMode):
    """Counts the bytes of what operations allocate."""

    def __init__(self):
        super().__init__()
        self.known, self.bytes, self.kept = set(), 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        before = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in before:
                self.bytes += x.untyped_storage().nbytes()
                self.kept.append(x)  # so that no address comes back
        return out


def bytes_of_a_step(attention, window=512, heads=4, dim=32):
    """What one step of 3 rows allocates, and the bytes of the keys alone."""
    qkv = torch.randn(ROWS, 1, 3, heads, dim)
    keys, values = torch.randn(2, ROWS, window, heads, dim).unbind(0)
    with torch.no_grad(), CountBytes() as count:
        attention(qkv, keys, values, torch.full((ROWS,), 3 * window))
    return count.bytes, keys.nbytes


@kinds
def test_a_step_does_not_copy_the_cache(name):
    allocated, keys = bytes_of_a_step(made(name).eval())
    assert allocated < keys


class CopiesTheCache(transformer.SelfAttention):
    """The fault: heads are moved to the front of the whole cache before it is multiplied."""

    def forward(self, qkv, key_cache=None, val_cache=None, cache_seqlens=None):
        q, _, _ = qkv.unbind(2)
        k, v = (x.transpose(1, 2).contiguous() for x in (key_cache, val_cache))
        return ((q.transpose(1, 2) @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2)


def test_copying_the_cache_would_be_noticed():
    allocated, keys = bytes_of_a_step(CopiesTheCache().eval())
    assert allocated > 2 * keys


def largest_mask(attention, rows=64, length=64):
    """Bytes of the largest mask that attention over whole sequences makes."""
    qkv = torch.randn(rows, length, 3, 1, 8)
    largest = [0]

    class LargestMask(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype == torch.bool:
                largest.append(out.untyped_storage().nbytes())
            return out

    with LargestMask():
        attention(qkv)
    return max(largest)


@kinds
def test_training_builds_no_mask_for_every_row(name):
    assert largest_mask(made(name)) <= 64 * 64


class MasksEveryRow(transformer.SelfAttention):
    """The fault: a mask (B, 1, L, L), though all rows have the same."""

    def forward(self, qkv, key_cache=None, val_cache=None, cache_seqlens=None):
        q, k, v = qkv.transpose(1, 3).unbind(2)  # (B, H, L, D)
        rows, length = qkv.shape[:2]
        seen = torch.ones(rows, 1, length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)


def test_a_mask_for_every_row_would_be_noticed():
    assert largest_mask(MasksEveryRow()) >= 64 * 64 * 64


class RefusesEvaluation(transformer.VanillaFlexAttention):
    """The fault: functions of the scores are for training alone."""

    def forward(self, qkv, *cache):
        if not self.training:
            raise NotImplementedError("no inference")
        return super().forward(qkv, *cache)


def acts_as_it_was_trained(attention):
    qkv = torch.randn(ROWS, 6, 3, 2, 8)
    trained = attention.train()(qkv)
    keys, values = torch.zeros(2, ROWS, 6, 2, 8).unbind(0)
    attention.eval()
    with torch.no_grad():
        torch.testing.assert_close(attention(qkv), trained)
        for step in range(6):
            out = attention(qkv[:, step : step + 1], keys, values, torch.full((ROWS,), step))
            torch.testing.assert_close(out[:, 0], trained[:, step])


@pytest.mark.parametrize("cls", [transformer.VanillaFlexAttention, Alibi, Parity])
def test_flex_attention_is_evaluated_and_rolled_out_as_it_was_trained(cls):
    acts_as_it_was_trained(cls(causal=True, dropout=0.0))
    with pytest.raises(NotImplementedError):
        acts_as_it_was_trained(RefusesEvaluation(causal=True, dropout=0.0))


def test_kinds_are_set_by_gin():
    gin.parse_config(
        """
        TformerTrajEncoder.attention_type = @ClippedSlidingSinkAttention
        amago.nets.transformer.ClippedSlidingSinkAttention.window_size = 7
        ClippedSlidingSinkAttention.logit_clip = 2.5
        """
    )
    attention = (
        TformerTrajEncoder(5, 4, d_model=16, n_heads=2).tformer.layers[0].attention_layer.self_attention
    )
    assert (attention.mask_mod.window, attention.score_mod.logit_clip) == (7, 2.5)


@pytest.mark.parametrize("cls", ["SlidingWindowFlexAttention", "ClippedSlidingSinkAttention"])
def test_missing_window_size_raises(cls):
    with pytest.raises(RuntimeError, match=rf"{cls}.* not provided in config: \['window_size'\]"):
        getattr(transformer, cls)(causal=True, dropout=0.0)


@pytest.mark.parametrize(
    ("cls", "kwargs", "message"),
    [
        ("SlidingWindowFlexAttention", {"window_size": -1}, "window_size must be at least 0, got -1"),
        (
            "ClippedSlidingSinkAttention",
            {"window_size": 2, "logit_clip": -1.0},
            "logit_clip must be at least 0",
        ),
        ("ClippedSlidingSinkAttention", {"window_size": 2, "sink_size": -1}, "sink_size must be at least 0"),
        ("FlashAttention", {"window_size": (-2, 0)}, "window_size must be .* at least -1"),
        ("FlashAttention", {"window_size": (1, 2, 3)}, "window_size must be 2 values"),
        ("FlashAttention", {"window_size": (3, 1), "causal": False}, "must have equal sides without causal"),
    ],
)
def test_bad_settings_are_named(cls, kwargs, message):
    with pytest.raises(ValueError, match=message):
        getattr(transformer, cls)(**kwargs)


@pytest.mark.parametrize("name", ["flash window", "sinks", "alibi"])
def test_kinds_compile_into_one_graph(name):
    torch.manual_seed(0)
    torch.compiler.reset()
    qkv = torch.randn(2, 6, 3, 2, 8, requires_grad=True)
    attention = made(name)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(qkv), attention(qkv), **CLOSE)
    compiled(qkv).sum().backward()
