"""`python -m amago.kernels.tune`: what it times, how it ranks, and what it leaves out."""

import importlib
import itertools
import json
import types

import pytest
import torch

from amago.kernels import backends, examples, measured, shape_classes, timing, tune
from amago.kernels.backends import Backend, Implementation, operations, register

CPU = torch.device("cpu")


@pytest.fixture
def with_backend():
    """Puts one more implementation of `linear` behind those that are there, for one test."""
    before = operations()["linear"]

    def put(run):
        register("linear", [*before, Implementation(Backend.TORCH, run)])

    yield put
    register("linear", before)


def by_torch(x, weight, bias, leaky):
    return torch.nn.functional.leaky_relu(x @ weight.T + bias, leaky)


@pytest.mark.parametrize(
    ("medians", "order"),
    [
        ({"cpp": 2.0, "torch": 1.0, "eager": 3.0}, ["torch", "cpp", "eager"]),
        ({"cpp": 1.04, "torch": 1.0, "eager": 1.02}, ["cpp", "torch", "eager"]),
        ({"cpp": 1.09, "torch": 1.03, "eager": 1.0}, ["torch", "cpp", "eager"]),
        ({"cpp": 9.0, "torch": 8.0, "eager": 1.0}, ["torch", "cpp", "eager"]),
        ({"eager": 1.0}, ["eager"]),
        ({}, []),
    ],
)
def test_the_faster_comes_first_unless_it_is_hardly_faster_and_the_specification_last(medians, order):
    assert list(tune.ranked(medians, last="eager")) == order


def test_no_backend_of_linear_has_to_be_last():
    assert list(tune.ranked({"onednn": 2.0, "eager": 1.0})) == ["eager", "onednn"]


@pytest.mark.parametrize("operation", list(shape_classes.NAMES))
def test_the_typical_call_of_a_class_falls_into_it(operation, monkeypatch):
    seen = []

    def watched(name, device, shape):
        seen.append((name, shape))
        raise InterruptedError  # the call itself takes long

    monkeypatch.setattr(backends, "_positions", watched)
    monkeypatch.setattr(importlib.import_module("amago.kernels.linear.onednn"), "pays", lambda *_: True)
    for shape in shape_classes.NAMES[operation]:
        example = tune.typical(operation, shape, CPU)
        assert example.operation == operation
        with pytest.raises(InterruptedError):
            example.run()
        assert seen[-1] == (operation, shape)


def test_every_backend_that_runs_is_measured(with_backend):
    with_backend(by_torch)
    tuner = tune.Tuner(CPU, rounds=2)
    assert set(tuner.measure("linear", "single")) == {"onednn", "eager", "torch"}
    assert set(tuner.measure("linear", "half")) == {"eager", "torch"}
    assert not tuner.failures


def test_a_backend_that_computes_wrongly_or_fails_is_left_out_and_said_to(with_backend, capsys):
    def fails(*_):
        raise ZeroDivisionError("rows")

    for run, message in (
        (fails, "by torch: ZeroDivisionError: rows"),
        (lambda *x: by_torch(*x) + 1e-3, "wrongly"),
    ):
        with_backend(run)
        tuner = tune.Tuner(CPU, rounds=1)
        assert "torch" not in tuner.measure("linear", "single")
        assert message in tuner.failures[0]
        assert message in capsys.readouterr().err
        register("linear", operations()["linear"][:-1])


def test_the_table_is_written_where_auto_looks_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shape_classes, "NAMES", {"linear": ("single",)})
    monkeypatch.setenv("AMAGO_KERNELS_CACHE", str(tmp_path))
    assert tune.main(["--device", "cpu", "--rounds", "1"]) == 0
    (entry,) = json.loads((tmp_path / "measured.json").read_text())["devices"]
    assert entry["threads"] == torch.get_num_threads()
    assert entry["torch"] == torch.__version__
    assert set(entry["microseconds"]["linear"]["single"]) == {"onednn", "eager"}
    assert f"written to {tmp_path / 'measured.json'}" in capsys.readouterr().out
    row = measured.known()[entry["device"], "linear", "single"]
    assert row.source == tmp_path / "measured.json"
    monkeypatch.undo()
    backends.forget_orders()


def test_one_operation_alone_is_measured_but_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("AMAGO_KERNELS_CACHE", str(tmp_path))
    assert tune.main(["--device", "cpu", "--rounds", "1", "--only", "linear"]) == 0
    assert not list(tmp_path.glob("*.json"))


def test_calls_take_turns_and_are_repeated_until_a_sample_is_full(monkeypatch):
    made, duration = [], {"a": 2**-10, "b": 2**-12}  # seconds, by a clock that only calls move
    clock = types.SimpleNamespace(perf_counter=lambda: sum(duration[name] for name in made))
    monkeypatch.setattr(timing, "time", clock)
    calls = {name: lambda name=name: made.append(name) for name in "ab"}
    times = timing.interleaved(calls, "cpu", rounds=3, sample=2**-6)
    assert times == {name: [duration[name]] * 3 for name in "ab"}
    turns = [(name, len(list(turn))) for name, turn in itertools.groupby(made)]
    assert turns[2:] == [("a", 16), ("b", 64)] * 3  # behind the calls that warm them up


def test_backward_passes_are_timed_with_the_forward_pass():
    example = examples.linear()
    gradients = timing.forward_and_backward(example, "eager")()
    assert [x.shape for x in gradients] == [x.shape for x in example.tensors.values()]
    assert not timing.forward(example, "eager")().requires_grad


def test_the_packages_table_can_be_read():
    rows = measured.rows_of(measured.PACKAGE_TABLE)
    names = {backend.value for backend in Backend}
    for (_, operation, shape), row in rows.items():
        assert shape in shape_classes.NAMES[operation]
        assert set(row.microseconds) <= names
