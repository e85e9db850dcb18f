"""Every backend of every operation on the calls by which `amago.kernels.testing` judges them.

The truth is the eager backend in float64, which the tests of each operation compare with formulas of their own.
test_correctness_triton.py runs this file in Triton's interpreter.
"""

from amago.kernels import examples
from amago.kernels.triton_runtime import INTERPRETED

# Numbers of a call that Triton's interpreter takes a second for; tests of each operation interpret larger ones.
LARGEST_TO_INTERPRET = {"attention": 300, "selective_scan": 600, "selective_scan_step": 600}
# What a backend leaves to others on a CPU: parts of the names of samples, which end in their precision.
REFUSED = {
    ("attention", "sdpa"): ["clip and biased sinks", "lengths, window, sinks, clip"],
    ("attention_step", "sdpa"): ["window, sinks, clip"],
    ("flex_attention", "sdpa"): ["scores", "both, and lengths"],
    ("flex_attention_step", "sdpa"): ["scores"],
    ("linear", "onednn"): ["float16", "bfloat16", "float64"],
}


def test_samples_are_as_exact_as_they_have_to_be_and_none_is_refused_without_reason(case):
    """Odd and large sizes, every option, each precision, odd memory, extreme numbers, memory full of NaN."""
    in_float32 = case.device == "cuda" or case.backend == "triton"
    refused = [*REFUSED.get((case.operation, case.backend), []), *(["float64"] if in_float32 else [])]
    for example in examples.sample_calls(case.operation, case.device):
        size = sum(x.numel() for x in example.tensors.values())
        if INTERPRETED and size > LARGEST_TO_INTERPRET.get(case.operation, 20_000):
            continue
        assert case.check(example) != any(part in example.name for part in refused), example.name
