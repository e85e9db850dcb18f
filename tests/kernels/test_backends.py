"""The order in which "auto" tries backends, requests by name, and torch.compile's view of the choice."""

import pytest
import torch
from tests.kernels import samples

from amago import kernels
from amago.kernels import backends, doctor
from amago.kernels.backends import Backend, Implementation, Unsupported

LOGITS, BINS = torch.zeros(3, 8), kernels.Bins(-1.0, 1.0, 8)
LOSS = {"cpu": "cpp eager", "cuda": "triton cuda eager"}
SCAN = {"cpu": "cpp torch eager", "cuda": "triton torch eager"}
ORDERS = {
    "two_hot_cross_entropy": LOSS,
    "hl_gauss_cross_entropy": LOSS,
    "two_hot_mean": LOSS,
    "attention": {"cpu": "sdpa eager", "cuda": "sdpa triton eager"},
    "masked_attention": {"cpu": "sdpa eager", "cuda": "triton sdpa eager"},
    "attention_step": {"cpu": "cpp sdpa eager", "cuda": "triton cuda sdpa eager"},
    "flex_attention": {"cpu": "sdpa eager", "cuda": "flex sdpa eager"},
    "flex_attention_step": {"cpu": "sdpa eager", "cuda": "sdpa eager"},
    "selective_scan": SCAN,
    "selective_scan_step": SCAN,
    "linear": {"cpu": "onednn eager", "cuda": "eager"},
}


@pytest.mark.parametrize("operation", [*kernels.available_backends(), "masked_attention"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_tries_the_backends_in_this_order(operation, device):
    found = backends.order(operation, torch.device(device))
    assert " ".join(backend.value for backend in found) == ORDERS[operation][device]
    if operation != "masked_attention":
        assert set(found) <= {impl.backend for impl in backends.operations()[operation]}


def test_other_devices_have_the_order_of_the_cpu():
    for operation in ORDERS:
        assert backends.order(operation, torch.device("meta")) == backends.order(
            operation, torch.device("cpu")
        )


@pytest.fixture
def asked_first(monkeypatch):
    """The backend that `attention` is asked for first on a CUDA device, without one."""

    def first(**options):
        asked = []

        def refuse(name):
            return lambda *_: asked.append(name) or ["it is only asked"]

        before = backends.operations()["attention"]
        backends.register(
            "attention", [Implementation(x.backend, x.run, refuse(x.backend.value)) for x in before]
        )
        monkeypatch.setitem(backends.ORDERS, "attention", {"cpu": backends.ORDERS["attention"]["cuda"]})
        masked = {"cpu": backends.ORDERS["masked_attention"]["cuda"]}
        monkeypatch.setitem(backends.ORDERS, "masked_attention", masked)
        try:
            with pytest.raises(Unsupported):
                kernels.attention(*torch.zeros(3, 2, 4, 1, 8), **options)
        finally:
            backends.register("attention", before)
            monkeypatch.undo()
        return asked[0]

    return first


def test_attention_with_a_window_biased_sinks_a_clip_or_lengths_goes_to_triton_first(asked_first):
    assert asked_first() == "sdpa"
    assert asked_first(causal=False, sink=2, dropout_p=0.1) == "sdpa"
    for options in (
        {"window": 2},
        {"logit_clip": 1.0},
        {"sink": 1, "sink_bias": 1.0},
        {"lengths": torch.tensor([1, 4])},
    ):
        assert asked_first(**options) == "triton"


def taken(backend=None, logits=LOGITS):
    return backends.choose("two_hot_mean", backend, logits.device, logits, BINS).backend


def test_a_requested_backend_runs_or_raises_with_its_reasons():
    assert taken() is Backend.CPP
    with pytest.raises(Unsupported, match="call of two_hot_mean: triton: its kernels need a CUDA device"):
        taken("triton")
    with kernels.use_backend("eager"):
        assert taken() is Backend.EAGER
        with kernels.use_backend("auto"):
            assert taken() is Backend.CPP
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of eager, .*got 'mkl'"):
        taken("mkl")
    with pytest.raises(Unsupported, match="two_hot_mean has no backend 'flex'; it has cpp, triton, "):
        taken("flex")


def test_auto_skips_what_cannot_run_the_call():
    assert taken(logits=LOGITS.to("meta")) is Backend.EAGER


def test_the_doctor_prints_the_order(capsys):
    doctor.main()
    block = capsys.readouterr().out.partition("\ntwo_hot_mean\n")[2]
    assert "auto on cpu: cpp > eager" in block


@pytest.mark.parametrize("operation", list(kernels.available_backends()))
def test_torch_compile_follows_every_operation_with_dynamic_sizes(operation):
    torch._dynamo.reset()
    example = next(samples.sample_calls(operation, "cpu"))
    with torch.no_grad():
        call = torch.compile(example.call, fullgraph=True, backend="eager", dynamic=True)
        torch.testing.assert_close(call(**example.tensors, backend=None), example.run())
