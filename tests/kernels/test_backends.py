"""How "auto" chooses: by measured speed where there is any, else in the default order, never what cannot run."""

import json
import timeit
import warnings

import pytest
import torch

from amago import kernels
from amago.kernels import backends, doctor, examples, measured, shape_classes
from amago.kernels.backends import Backend, Implementation, Unsupported

HERE = shape_classes.device_class(torch.device("cpu"))
LOGITS, BINS = torch.zeros(3, 8), kernels.Bins(-1.0, 1.0, 8)


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """The folder of the user's table, and a package's table of its own; both empty at first."""
    monkeypatch.setattr(measured, "user_table", lambda: tmp_path / "user.json")
    monkeypatch.setattr(measured, "PACKAGE_TABLE", tmp_path / "package.json")
    backends.forget_orders()
    yield tmp_path
    monkeypatch.undo()
    backends.forget_orders()


def write(path, microseconds, device=HERE):
    measured.write(path, {"device": device, "date": "2026-01-31", "microseconds": microseconds})
    backends.forget_orders()


def tried(operation="two_hot_mean", shape="small single", device="cpu"):
    """The backends in the order in which they are tried."""
    return [impl.backend.value for impl in backends.order(operation, torch.device(device), shape)[0]]


def taken(logits=LOGITS, backend=None):
    return backends.choose("two_hot_mean", backend, logits, BINS).backend


def test_the_fastest_measured_backend_is_taken_for_its_class_of_sizes_alone(tables):
    write(tables / "package.json", {"two_hot_mean": {"small single": {"torch": 1.0, "cpp": 2.0}}})
    assert taken() is Backend.TORCH
    assert taken(torch.zeros(1 << 15, 8)) is Backend.CPP
    assert taken(LOGITS.bfloat16()) is Backend.CPP
    assert tried() == ["torch", "cpp", "triton", "cuda", "eager"]


def test_what_was_not_measured_keeps_its_order_behind_the_rest(tables):
    write(tables / "package.json", {"two_hot_mean": {"small single": {"eager": 1.0}}})
    assert tried() == ["eager", "cpp", "triton", "torch", "cuda"]


def test_the_users_table_has_precedence_row_by_row(tables):
    write(
        tables / "package.json",
        {"two_hot_mean": {"small single": {"torch": 1}, "large single": {"torch": 1}}},
    )
    write(tables / "user.json", {"two_hot_mean": {"small single": {"eager": 1.0}}})
    assert tried()[0] == "eager"
    assert tried(shape="large single")[0] == "torch"


def test_measurements_of_another_device_do_not_count(tables):
    write(
        tables / "user.json", {"two_hot_mean": {"small single": {"torch": 1.0}}}, device="cpu of another kind"
    )
    assert taken() is Backend.CPP


def test_the_order_never_takes_what_cannot_run(tables):
    write(tables / "user.json", {"two_hot_mean": {"small single": {"triton": 1.0, "eager": 2.0}}})
    assert taken() is Backend.EAGER


def test_a_backend_that_is_asked_for_runs_or_raises_whatever_was_measured(tables):
    write(tables / "user.json", {"two_hot_mean": {"small single": {"torch": 1.0}}})
    assert taken(backend="cpp") is Backend.CPP
    with pytest.raises(
        Unsupported, match="no backend can run this call of two_hot_mean: triton: its kernels need"
    ):
        taken(backend="triton")
    with kernels.use_backend("eager"):
        assert taken() is Backend.EAGER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"it cannot be read"),
        ("[]", r"it is of format None, and this version reads format 1"),
        ('{"format": 0, "devices": []}', r"it is of format 0, and this version reads format 1"),
        ('{"format": 1, "devices": [{"device": "x"}]}', r"its entries are not as they should be"),
        (
            '{"format": 1, "devices": [{"device": "x", "microseconds": {"linear": {"half": {"cpp": "?"}}}}]}',
            "could not",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_ignored_with_one_warning_that_names_it(tables, text, message):
    (tables / "user.json").write_text(text)
    write(tables / "package.json", {"two_hot_mean": {"small single": {"torch": 1.0}}})
    with pytest.warns(
        UserWarning, match=rf"user\.json is ignored: .*{message}.*amago.kernels.tune"
    ) as caught:
        assert taken() is Backend.TORCH
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken(torch.zeros(4, 8)) is Backend.TORCH


def test_writing_keeps_what_is_known_of_other_devices(tables):
    write(tables / "user.json", {"linear": {"half": {"eager": 1.0}}}, device="another")
    write(tables / "user.json", {"linear": {"single": {"eager": 1.0}}})
    write(tables / "user.json", {"linear": {"half": {"eager": 2.0}}})
    rows = measured.rows_of(tables / "user.json")
    assert {key: row.microseconds for key, row in rows.items()} == {
        ("another", "linear", "half"): {"eager": 1.0},
        (HERE, "linear", "half"): {"eager": 2.0},
    }
    assert json.loads((tables / "user.json").read_text())["format"] == measured.FORMAT
    assert list(tables.iterdir()) == [tables / "user.json"]


def test_kernels_for_gpus_that_nobody_measured_come_after_torchs_own(monkeypatch):
    monkeypatch.setattr(shape_classes, "device_class", lambda device: "a GPU that nobody measured")
    for operation in shape_classes.NAMES:
        names = tried(operation, shape_classes.NAMES[operation][0], "cuda")
        ours = [name in ("triton", "cuda") for name in names]
        assert ours == sorted(ours), names
    assert tried("attention", "plain short half", "cuda") == ["sdpa", "flex", "eager", "triton"]


def test_every_operation_has_classes_of_sizes_and_its_calls_fall_into_them(monkeypatch):
    assert set(shape_classes.NAMES) == set(shape_classes.FUNCTIONS) == set(backends.operations())
    seen = {}
    positions = backends._positions

    def watched(operation, device, shape):
        seen.setdefault(operation, set()).add(shape)
        return positions(operation, device, shape)

    monkeypatch.setattr(backends, "_positions", watched)
    for operation in shape_classes.NAMES:
        for example in examples.sample_calls(operation, "cpu"):
            with torch.no_grad():
                example.run()
    for operation, shapes in seen.items():
        assert shapes <= set(shape_classes.NAMES[operation])


def test_choosing_takes_microseconds():
    taken()
    seconds = min(timeit.repeat(taken, number=1000, repeat=20)) / 1000
    assert seconds < 50e-6


def test_the_doctor_says_in_which_order_and_from_where(tables, capsys):
    write(tables / "package.json", {"two_hot_mean": {"small single": {"torch": 1.0, "cpp": 2.0}}})
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    block = out.partition("\ntwo_hot_mean\n")[2]
    assert f"auto on {HERE}" in block
    assert "torch > cpp > eager  [small single]  (the package's table, 2026-01-31" in block
    rest = "small half, large single, large half"
    assert (
        f"cpp > torch > eager  [{rest}]  (never measured on this device: python -m amago.kernels.tune)"
        in block
    )


def test_the_doctor_says_which_versions_were_others_when_the_user_measured(tables, capsys):
    def report(path, **versions):
        entry = {"device": HERE, "date": "2026-01-31", **measured.versions(), **versions}
        entry["microseconds"] = {"two_hot_mean": {"small single": {"torch": 1.0, "cpp": 2.0}}}
        measured.write(path, entry)
        backends.forget_orders()
        assert doctor.main([]) == 0
        return capsys.readouterr().out

    here, old = measured.versions(), {"torch": "1.0", "amago-kernels": "0.0.1"}
    assert "measures anew" not in report(tables / "user.json")
    out = report(tables / "user.json", **old)
    was = f"torch was 1.0, is {here['torch']}, amago-kernels was 0.0.1, is {here['amago-kernels']}"
    assert f"; {was}: python -m amago.kernels.tune measures anew)" in out
    (tables / "user.json").unlink()
    assert "measures anew" not in report(tables / "package.json", **old)


def test_other_implementations_of_an_operation_are_ordered_anew():
    before = backends.operations()["two_hot_mean"]
    assert taken() is Backend.CPP
    try:
        backends.register("two_hot_mean", [Implementation(Backend.CUDA, lambda *_: None), *before])
        assert taken() is Backend.CUDA
    finally:
        backends.register("two_hot_mean", before)
