"""What Triton makes of its kernels for GPUs that need not be here: whether they fit, and how they read memory.

A kernel whose numbers do not fit into registers keeps them in memory, which costs more than a smaller block would.
"""

import pytest

from amago.kernels.attention import gpu, triton_backward, triton_kernels, triton_step
from amago.kernels.attention.triton_kernels import Kind
from amago.kernels.scan import triton_kernels as scan
from amago.kernels.triton_runtime import INTERPRETED
from amago.kernels.two_hot import triton_kernels as two_hot
from amago.kernels.two_hot.triton_kernels import rows_of_program

pytestmark = pytest.mark.source_only

assert not INTERPRETED, "these tests are for a process without TRITON_INTERPRET"
MOST_SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes of a program on an A100 and on a Hopper
WIDE_LOAD, WIDE_STORE = "ld.global.v4.b32", "st.global.v4.b32"

HEADS = ("q", "k", "v", "out", "grad", "grad_q", "grad_k", "grad_v")
EVERYTHING = {"WINDOW": True, "BIAS": True, "CLIP": True, "lengths": "*i32"}


def attention_kernels(kind):
    """The kernels with the shapes of their blocks."""
    return (
        (triton_kernels._forward, triton_kernels.forward_shape(kind)),
        (triton_backward._keys_backward, triton_backward.keys_shape(kind)),
        (triton_backward._queries_backward, triton_backward.queries_shape(kind)),
    )


def assert_attention_fits(compile_for_gpu, capability, dim, kind, *, stack=0, **options):
    arguments = dict.fromkeys(HEADS, "*fp32" if kind.size == 4 else "*bf16")
    arguments |= dict.fromkeys(("lse", "delta"), "*fp32")
    arguments |= dict.fromkeys(("sink_bias", "clip", "scale", "dropout"), "fp32")
    arguments |= dict.fromkeys(("q3", "k3", "v3", "out3", "grad3"), 1) | {"lengths": None, "seed": None}
    arguments |= {"CAUSAL": True, "WINDOW": False, "BIAS": False, "CLIP": False}
    arguments |= {"PRECISION": "ieee" if kind.exact else "tf32", "D": dim, "W": kind.width}
    for kernel, shape in attention_kernels(kind):
        blocks = {"M": shape.queries, "N": shape.keys}
        found = compile_for_gpu(
            kernel, capability, arguments | blocks | options, warps=shape.warps, stages=shape.stages
        )
        assert found.stack <= stack, f"{kernel.__name__}: {found.stack} bytes, {found.registers} registers"
        assert found.shared <= MOST_SHARED[capability]
        assert kind.exact or "mma" in found.ptx
        assert "st.global.v4" in found.ptx


@pytest.mark.parametrize(("capability", "dim"), [(90, 24), (90, 128), (80, 64)])
def test_attention_in_half_precision_stays_in_registers_and_uses_tensor_cores(
    compile_for_gpu, capability, dim
):
    width = 1 << (dim - 1).bit_length()
    assert_attention_fits(compile_for_gpu, capability, dim, Kind(width, 2, False))


def test_attention_with_every_option_stays_in_registers(compile_for_gpu):
    assert_attention_fits(compile_for_gpu, 90, 64, Kind(64, 2, False), **EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64])
def test_attention_with_dropout_takes_little_memory_beside_registers(compile_for_gpu, dim):
    """The generator of random numbers needs many registers, and more time than the few words cost."""
    kind = Kind(dim, 2, False)
    assert_attention_fits(compile_for_gpu, 90, dim, kind, stack=256, seed="*i64", **EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_in_float32_leaves_few_words_outside_registers(compile_for_gpu, dim, exact):
    """None with Triton 3.6, up to 50 with 3.7, exact products over 128 features; larger blocks leave thousands."""
    assert_attention_fits(compile_for_gpu, 90, dim, Kind(dim, 4, exact), stack=256)


@pytest.mark.parametrize(
    ("capability", "dtype", "size", "heads", "dim"),
    [(90, "*fp32", 4, 8, 64), (90, "*bf16", 2, 3, 40), (80, "*bf16", 2, 8, 128)],
)
def test_a_step_reads_its_cache_sixteen_bytes_at_a_time(compile_for_gpu, capability, dtype, size, heads, dim):
    width = 1 << (dim - 1).bit_length()
    group, slots = triton_step.tile_shape(heads, width, size)
    assert (group, slots * group * width * size) == (gpu.groups_of_heads(heads, group), 8192)
    arguments = dict.fromkeys(("q", "k", "v", "keys", "values", "out"), dtype)
    arguments |= dict.fromkeys(("part_max", "part_sum", "part_mixed"), "*fp32")
    arguments |= dict.fromkeys(("lengths", "positions"), "*i64")
    arguments |= dict.fromkeys(("sink_bias", "clip", "scale", "base"), "fp32")
    arguments |= dict.fromkeys(("q3", "k3", "v3", "keys3", "values3"), 1)
    arguments |= {"S": slots, "G": group, "D": dim, "P": width, "SPLIT": True}
    for option in (True, False):
        options = dict.fromkeys(("WINDOW", "BIAS", "CLIP"), option)
        found = compile_for_gpu(triton_step._ring, capability, arguments | options)
        assert found.stack <= 48, "more than the sine's few words, which no loop touches"
        assert found.registers <= 128, "four programs of 128 threads do not fit a processor any more"
        assert found.ptx.count("ld.global") - found.ptx.count("ld.global.v4") <= 36  # those of the new step
        assert found.ptx.count(WIDE_LOAD) >= 8  # keys and values of a tile
    plain = {"positions": None, "WINDOW": False, "BIAS": False, "CLIP": False}
    assert compile_for_gpu(triton_step._ring, capability, arguments | plain).stack == 0
    compile_for_gpu(triton_step._join, capability, arguments | {"N": 64, "out": dtype}, warps=1)


ROWS = dict.fromkeys(("target", "weight", "loss", "grad", "value"), "*fp32") | {"mask": "*i1"}
SUPPORT = dict.fromkeys(("low", "high", "start", "width", "per_width", "sharpness"), "fp32")
TWO_HOT = (
    (two_hot._cross_entropy, {"GAUSS": False}),
    (two_hot._cross_entropy, {"GAUSS": True, "mask": None, "weight": None}),
    (two_hot._cross_entropy_backward, {"GAUSS": False}),
    (two_hot._cross_entropy_backward, {"GAUSS": True, "mask": None, "weight": None}),
    (two_hot._mean, {}),
    (two_hot._mean_backward, {}),
)


@pytest.mark.parametrize(("capability", "dtype"), [(80, "*bf16"), (90, "*fp32")])
def test_two_hot_kernels_read_and_write_sixteen_bytes_at_a_time(compile_for_gpu, capability, dtype):
    arguments = ROWS | SUPPORT | {"logits": dtype, "out": dtype, "N": 128, "W": 128, "SYMLOG": True}
    for kernel, options in TWO_HOT:
        writes = "backward" in kernel.__name__
        crowded = options.get("GAUSS", False) or (writes and dtype == "*fp32")
        rows = rows_of_program(128, crowded)
        found = compile_for_gpu(kernel, capability, arguments | options | {"R": rows})
        assert WIDE_LOAD in found.ptx
        assert not writes or WIDE_STORE in found.ptx
        assert found.stack == 0, f"{kernel.__name__}: {found.stack} bytes"


@pytest.mark.parametrize(("capability", "dtype"), [(80, "*bf16"), (90, "*fp32")])
@pytest.mark.parametrize("states", [16, 64])
def test_scan_kernels_stay_in_registers(compile_for_gpu, states, capability, dtype):
    sequences = ("u", "delta", "B", "C", "z", "grad_y", "y", "grad_u", "grad_delta", "grad_z")
    others = ("A", "D", "bias", "initial", "last", "starts", "grad_last", "workspace", "grad_initial")
    parts = ("part_A", "part_B", "part_C", "part_D", "part_bias")
    arguments = dict.fromkeys(sequences, dtype) | dict.fromkeys((*others, *parts), "*fp32")
    arguments |= dict.fromkeys(("u2", "delta2", "B2", "C2", "z2", "y2", "A1"), 1)
    arguments |= {"SOFTPLUS": True, "SAVE": True, "T": scan.CHUNK, "N": states}
    plain = {"z": None, "D": None, "bias": None, "initial": None, "SOFTPLUS": False, "SAVE": False, "rows": 1}
    for kernel, held in (
        (scan._forward, scan.FORWARD_STATES),
        (scan._backward, scan.BACKWARD_STATES),
    ):
        channels, width = scan.widths(states, held)
        for options in ({}, plain):
            every = arguments | options | {"E": channels, "W": width}
            assert compile_for_gpu(kernel, capability, every, warps=1).stack == 0
