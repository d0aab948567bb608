"""Triton kernels of attention: what they compute, in Triton's interpreter, and what IREE makes of their launches."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from test_external_kernels import build, states
from test_launch_programs import check_code, program_of, runs_of
from test_triton_interpreted import LIMITS, interpret

from dispatch_profiler.configurations import TritonAttention
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Attention, Distribution

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="the interpreter takes torch's tensors")

SMALL = TritonAttention(tile=(16, 16))
#: Numbers of queries and keys that are no multiples of a tile.
CASES = {
    "heads": Dispatch(Attention(2, 3, 33, 41, 16), SMALL),
    "sizes": Dispatch(Attention(1, 2, 20, 37, 24, value_size=40), SMALL),
    "tiny": Dispatch(Attention(1, 1, 3, 5, 7, value_size=3), SMALL),
    "f16": Dispatch(Attention(1, 2, 33, 41, 16, type="f16"), SMALL),
    "grouped": Dispatch(Attention(2, 6, 20, 37, 16, key_heads=2), SMALL),
    "merged": Dispatch(Attention(2, 6, 5, 37, 16, key_heads=2), TritonAttention(tile=(16, 32), heads=3)),
    "merged_causal": Dispatch(
        Attention(1, 4, 9, 37, 16, key_heads=2, causal="lower_right"), TritonAttention(tile=(16, 16), heads=2)
    ),
    "parts": Dispatch(Attention(1, 4, 1, 70, 16, logsumexp=True), TritonAttention(tile=(16, 16), parts=4)),
    "parts_without_keys": Dispatch(
        Attention(1, 2, 40, 70, 16, causal="upper_left"), TritonAttention(tile=(16, 16), parts=3)
    ),
    "parts_of_merged": Dispatch(
        Attention(2, 8, 2, 100, 16, key_heads=2, value_size=20),
        TritonAttention(tile=(16, 16), parts=5, heads=4),
    ),
    "upper_left": Dispatch(Attention(1, 2, 50, 40, 16, causal="upper_left"), SMALL),
    "lower_right": Dispatch(Attention(1, 2, 40, 50, 16, causal="lower_right"), SMALL),
    "more_queries": Dispatch(Attention(1, 2, 50, 20, 16, causal="lower_right", logsumexp=True), SMALL),
    "window": Dispatch(Attention(1, 2, 70, 70, 16, causal="upper_left", window=21), SMALL),
    "window_of_one": Dispatch(Attention(1, 2, 40, 40, 16, causal="upper_left", window=1), SMALL),
    "window_in_parts": Dispatch(
        Attention(1, 2, 40, 90, 16, causal="lower_right", window=33), TritonAttention(tile=(16, 16), parts=2)
    ),
    "bool": Dispatch(Attention(2, 4, 20, 37, 16, mask="bool", mask_axes="bq", logsumexp=True), SMALL),
    "added": Dispatch(Attention(2, 4, 20, 37, 16, mask="add", mask_axes="hq"), SMALL),
    "added_to_keys": Dispatch(Attention(2, 4, 20, 37, 16, mask="add"), SMALL),
    "bool_of_merged": Dispatch(
        Attention(2, 4, 5, 37, 16, key_heads=1, mask="bool", mask_axes="bhq"),
        TritonAttention(tile=(16, 16), heads=4, parts=2),
    ),
    "positions_first": Dispatch(Attention(2, 4, 20, 37, 16, key_heads=2, layout="bshd"), SMALL),
    "positions_first_in_parts": Dispatch(
        Attention(2, 4, 1, 37, 16, layout="bshd", logsumexp=True), TritonAttention(tile=(16, 16), parts=2)
    ),
}
KEYS = [(name, kind) for name in CASES for kind in (Distribution.REALS, Distribution.OFFSET)]


def drawn(operation, kind):
    rng = np.random.default_rng(7)
    return [operation.draw(each, kind, rng) for each in operation.operands]


@pytest.fixture(scope="module")
def results(made_once):
    """All of them at once: starting Triton takes longer than they do."""
    cases = [(CASES[name], drawn(CASES[name].operation, kind)) for name, kind in KEYS]
    answer = made_once("triton_attention", lambda path: interpret(cases, path))
    return dict(zip(KEYS, pickle.loads(answer.read_bytes()), strict=True))


def test_every_attention_is_one_that_could_be_generated():
    reasons = {
        name: each.configuration.invalid_reason(each.operation, LIMITS) for name, each in CASES.items()
    }
    assert {name: reason for name, reason in reasons.items() if reason is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), KEYS)
def test_attention_kernels_compute_what_numpy_does(name, kind, results):
    """Within the bound of a kernel that rescales its sums; every element is written."""
    dispatch = CASES[name]
    bound = dispatch.configuration.error_bound(dispatch.operation)
    references = dispatch.operation.reference(drawn(dispatch.operation, kind), error_bound=bound)
    found = results[name, kind]
    for got, expected in zip([found] if len(references) == 1 else found, references, strict=True):
        assert got.shape == expected.expected.shape
        finite = np.isfinite(expected.expected)
        np.testing.assert_array_equal(got[~finite], expected.expected[~finite])
        off = np.abs(got[finite].astype(np.float64) - expected.expected[finite])
        assert np.all(off <= expected.tolerance[finite])


#: Of every feature of the kernels, for both architectures: (operation, configuration).
COMPILED = {
    "f16": (Attention(1, 4, 256, 256, 64, type="f16"), TritonAttention(tile=(64, 64))),
    "causal_bf16": (
        Attention(1, 4, 256, 256, 128, type="bf16", causal="upper_left"),
        TritonAttention(tile=(128, 64), warps=8, stages=2),
    ),
    "decoding": (
        Attention(1, 8, 1, 512, 64, key_heads=2, type="f16", logsumexp=True),
        TritonAttention(tile=(16, 64), parts=4, heads=4),
    ),
    "masked_f32": (
        Attention(1, 2, 64, 64, 32, mask="add", mask_axes="q"),
        TritonAttention(tile=(32, 32), precision="tf32x3"),
    ),
}


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "target"), [(name, arch) for name in COMPILED for arch in ("cuda:sm_90", "cuda:sm_80")]
)
def test_all_kernels_of_an_attention_are_in_both_vmfbs(name, target):
    operation, configuration = COMPILED[name]
    built = build(target, operation, configuration)

    assert states(built) == ["compiled"]
    entries = ["attention", *(["attention_of_parts"] if configuration.parts > 1 else [])]
    for vmfb in (built.verify, built.profile):
        found = re.findall(rb"\.visible \.entry (attention\w*)\(", vmfb)
        assert sorted(each.decode() for each in found) == entries
    multiplies = b"wgmma" if target == "cuda:sm_90" and configuration.tile[0] >= 64 else b"mma.sync"
    assert multiplies in built.verify


def test_an_attention_of_parts_is_two_launches_of_one_program():
    """The second kernel reads what the first one wrote."""
    operation, configuration = COMPILED["decoding"]
    program, found = program_of(operation, configuration)

    check_code(program, found.verify)
    first, second = runs_of(program)
    assert [program.kernels[each.kernel].entry for each in (first, second)] == [
        "attention",
        "attention_of_parts",
    ]
    written = [(each.buffer, each.offset) for each in first.bindings[3:5]]
    assert [(each.buffer, each.offset) for each in second.bindings[:2]] == written
