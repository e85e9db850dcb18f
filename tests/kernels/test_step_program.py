"""Step programs compute what torch computes; tests/agents/test_acting_by_program.py compares whole agents.

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
from amago.kernels.step_program import Memory, StepProgram, wanted, why_not

ROWS = 7


def run(program: StepProgram, *inputs: torch.Tensor, positions: torch.Tensor | None = None, **memory):
    """What the program emits for contiguous float32 inputs (B, ...)."""
    program.refresh()
    out = torch.full((ROWS, program.widths[-1]), torch.nan)
    addresses = [(x.data_ptr(), x.numel() // ROWS) for x in inputs]
    positions = torch.zeros(ROWS, dtype=torch.int64) if positions is None else positions
    assert program.run(ROWS, addresses, positions, Memory(**memory), None, out)
    return out


def test_values_that_share_their_place_do_not_disturb_each_other():
    torch.manual_seed(0)
    widths = [5, 70, 3, 33, 64, 18]
    weights = [(torch.randn(n, k) / k**0.5, torch.randn(n)) for k, n in itertools.pairwise(widths)]
    program, inputs = StepProgram(), torch.randn(ROWS, 5)
    x, expected, values = program.gather([(0, 5, 0)]), inputs, []
    for weight, bias in weights:
        x = program.linear(x, len(bias), lambda pair=(weight, bias): pair, ("leaky_relu", 0.1))
        expected = F.leaky_relu(F.linear(expected, weight, bias), 0.1)
        values.append((x, expected))
    early, early_expected = values[0]  # is needed long after the others have come and gone
    back = torch.randn(70, 18)
    program.emit(program.linear(x, 70, lambda: (back, None), add=early))
    program.build()
    got = run(program, inputs)
    torch.testing.assert_close(got, F.linear(expected, back) + early_expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_a_layer_norm_of_any_width(width):
    torch.manual_seed(width)
    x, scale, shift, add = torch.randn(ROWS, width), *torch.randn(3, ROWS, width)
    scale, shift = scale[0].contiguous(), shift[0].contiguous()
    program = StepProgram()
    both = [program.gather([(i, width, 0)]) for i in (0, 1)]
    program.emit(program.norm(both[0], "layer", 1e-5, lambda: (scale, shift), ("relu", 0.0), both[1]))
    program.build()
    expected = F.layer_norm(x, (width,), scale, shift).relu() + add
    torch.testing.assert_close(run(program, x, add), expected, atol=1e-5, rtol=1e-5)


def test_inputs_lie_side_by_side_and_hidden_numbers_are_zeros_even_if_they_are_none():
    first, second = torch.randn(ROWS, 2), torch.randn(ROWS, 3)
    second[:, 0] = torch.nan
    program = StepProgram()
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
    program = StepProgram()
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


def test_positions_without_an_entry_are_refused_before_anything_happens():
    table = torch.randn(4, 6)
    program = StepProgram()
    x = program.gather([(0, 6, 0)])
    program.add_position(x, lambda count: table[:count], limit=4)
    program.emit(x)
    program.build()
    inputs, positions = torch.randn(ROWS, 6), torch.arange(ROWS) % 4
    torch.testing.assert_close(run(program, inputs, positions=positions), inputs + table[positions])
    out = torch.full((ROWS, 6), 3.0)
    for wrong in (4, -1):
        positions[2] = wrong
        assert not program.run(ROWS, [(inputs.data_ptr(), 6)], positions, Memory(), None, out)
    assert (out == 3.0).all()


def test_uniform_numbers_choose_by_cumulative_probability():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().expand(ROWS, -1).contiguous()
    uniform = torch.tensor([0.0, 0.0999, 0.1001, 0.4999, 0.5001, 0.7001, 0.99999994]).view(ROWS, 1)
    program = StepProgram()
    program.choose(program.gather([(0, 4, 0)]), [(4, 0.0, 1.0)])
    program.build()
    program.refresh()
    out = torch.empty(ROWS, 1, dtype=torch.int64)
    program.run(ROWS, [(logits.data_ptr(), 4)], out, Memory(), uniform, out)
    assert out.flatten().tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_operations_are_listed_and_timed():
    weight = torch.randn(6, 5)
    program, inputs = StepProgram(), torch.randn(ROWS, 5)
    program.emit(program.linear(program.gather([(0, 5, 0)]), 6, lambda: (weight, None)))
    program.build()
    assert program.operations() == [("gather", ()), ("linear", (5, 6)), ("emit", ())]
    assert program.profile() == [0.0, 0.0, 0.0]
    for _ in range(20):
        torch.testing.assert_close(run(program, inputs), F.linear(inputs, weight))
    assert all(seconds > 0 for seconds in program.profile())


def test_programs_run_here_unless_another_backend_is_asked_for():
    assert why_not() == []
    assert wanted()
    with kernels.use_backend("eager"):
        assert not wanted()
    with kernels.use_backend("cpp"):
        assert wanted()


def test_without_a_compiler_the_reason_is_said(tmp_path):
    script = "from amago.kernels.step_program import why_not; print(why_not())"
    env = os.environ | {"CXX": "no-such-compiler", "AMAGO_KERNELS_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert "no-such-compiler" in done.stdout
