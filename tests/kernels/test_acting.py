"""Acting programs compute the same as torch; tests/agents/test_compiled_actor.py compares whole agents.

Shapes: B rows.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from amago import kernels
from amago.kernels.acting import Program, StateBuffers, unavailable

ROWS = 7


def run(program: Program, *inputs: torch.Tensor, positions: torch.Tensor | None = None, **buffers):
    """What the program emits for contiguous float32 inputs (B, ...)."""
    out = torch.full((ROWS, program.widths[-1]), torch.nan)
    addresses = [(x.data_ptr(), x.numel() // ROWS) for x in inputs]
    positions = torch.zeros(ROWS, dtype=torch.int64) if positions is None else positions
    assert program.run(ROWS, addresses, positions, StateBuffers(**buffers), None, out)
    return out


def test_values_that_share_memory_do_not_overwrite_each_other():
    torch.manual_seed(0)
    widths = [5, 70, 3, 33, 64, 18]
    weights = [(torch.randn(n, k) / k**0.5, torch.randn(n)) for k, n in itertools.pairwise(widths)]
    program, inputs = Program(), torch.randn(ROWS, 5)
    x, expected, values = program.gather([(0, 5, 0)]), inputs, []
    for weight, bias in weights:
        x = program.linear(x, weight, bias, ("leaky_relu", 0.1))
        expected = F.leaky_relu(F.linear(expected, weight, bias), 0.1)
        values.append((x, expected))
    early, early_expected = values[0]  # is needed long after the others have come and gone
    back = torch.randn(70, 18)
    program.emit(program.linear(x, back, None, add=early))
    program.build()
    got = run(program, inputs)
    torch.testing.assert_close(got, F.linear(expected, back) + early_expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_a_layer_norm_of_any_width(width):
    torch.manual_seed(width)
    x, scale, shift, add = torch.randn(ROWS, width), *torch.randn(3, ROWS, width)
    scale, shift = scale[0].contiguous(), shift[0].contiguous()
    program = Program()
    both = [program.gather([(i, width, 0)]) for i in (0, 1)]
    program.emit(program.norm(both[0], "layer", 1e-5, scale, shift, ("relu", 0.0), both[1]))
    program.build()
    expected = F.layer_norm(x, (width,), scale, shift).relu() + add
    torch.testing.assert_close(run(program, x, add), expected, atol=1e-5, rtol=1e-5)


def test_inputs_are_concatenated_and_hidden_elements_are_zero_even_if_they_are_nan():
    first, second = torch.randn(ROWS, 2), torch.randn(ROWS, 3)
    second[:, 0] = torch.nan
    program = Program()
    program.emit(program.gather([(1, 3, 1), (0, 2, 0)], symlog=True))
    program.build()
    expected = torch.cat([second.nan_to_num(0.0), first], dim=1)
    expected = expected.sign() * expected.abs().log1p()
    torch.testing.assert_close(run(program, first, second), expected)


@pytest.mark.parametrize("dim", [4, 16, 24, 32])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_equals_attention_step(dim, window):
    torch.manual_seed(dim)
    heads, slots = 3, 20
    cache = kernels.RingCache.empty(ROWS, slots, heads, dim)
    keys, values = torch.zeros(2, 1, ROWS, slots, heads, dim)
    lengths = torch.zeros(ROWS, dtype=torch.int64)
    program = Program()
    qkv = program.gather([(0, 3 * heads * dim, 0)])
    program.emit(program.attend(qkv, 0, heads, dim, window=window, sink=2))
    program.build()
    for _ in range(45):
        qkv = torch.randn(ROWS, 1, 3, heads, dim)
        got = run(program, qkv, keys=keys, values=values, lengths=lengths)
        expected = kernels.attention_step(*qkv.unbind(2), cache, window=window, sink=2, backend="eager")
        torch.testing.assert_close(got, expected.flatten(1), atol=1e-5, rtol=1e-5)
        cache.advance()
        assert torch.equal(lengths, cache.lengths)
        reset = torch.rand(ROWS) < 0.03
        cache.reset(reset)
        lengths[reset] = 0
    torch.testing.assert_close(keys[0], cache.keys)


def test_positions_out_of_range_are_refused_before_anything_is_written():
    table = torch.randn(4, 6)
    program = Program()
    x = program.gather([(0, 6, 0)])
    program.add_position(x, lambda count: table[:count], limit=4)
    program.emit(x)
    program.build()
    inputs, positions = torch.randn(ROWS, 6), torch.arange(ROWS) % 4
    torch.testing.assert_close(run(program, inputs, positions=positions), inputs + table[positions])
    out = torch.full((ROWS, 6), 3.0)
    for wrong in (4, -1):
        positions[2] = wrong
        assert not program.run(ROWS, [(inputs.data_ptr(), 6)], positions, StateBuffers(), None, out)
    assert (out == 3.0).all()


def test_uniform_noise_chooses_by_cumulative_probability():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().expand(ROWS, -1).contiguous()
    uniform = torch.tensor([0.0, 0.0999, 0.1001, 0.4999, 0.5001, 0.7001, 0.99999994]).view(ROWS, 1)
    program = Program()
    program.choose(program.gather([(0, 4, 0)]), [(4, 0.0, 1.0)])
    program.build()
    out = torch.empty(ROWS, 1, dtype=torch.int64)
    program.run(ROWS, [(logits.data_ptr(), 4)], out, StateBuffers(), uniform, out)
    assert out.flatten().tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_programs_run_unless_another_backend_is_asked_for():
    assert unavailable() == []
    with kernels.use_backend("eager"):
        assert unavailable() != []
    with kernels.use_backend("cpp"):
        assert unavailable() == []


def test_a_missing_compiler_is_named(tmp_path):
    script = "from amago.kernels.acting import unavailable; print(unavailable())"
    env = os.environ | {"CXX": "no-such-compiler", "AMAGO_KERNELS_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert "no-such-compiler" in done.stdout
