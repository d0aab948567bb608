"""Microkernels of attention, compiled and run: every kind of attention, blocks of keys, and faults that are planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compiled_helpers import TARGET, failures_of, verify_tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_units import needs_avx512

from dispatch_profiler.compiler.source.functions import functions_of
from dispatch_profiler.configurations import AttentionMicrokernel, Configuration, DecodingMicrokernel, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Attention, Operation

#: Extents that no vector divides, and more keys than a block has.
CASES = [
    Attention(2, 4, 37, 53, 19, key_heads=2),
    Attention(1, 2, 37, 53, 16, value_size=21, causal="upper_left"),
    Attention(1, 2, 20, 53, 17, causal="lower_right"),
    Attention(1, 2, 60, 53, 17, causal="lower_right"),  # the first queries see no key
    Attention(1, 2, 70, 70, 17, causal="upper_left", window=9),
    Attention(1, 2, 20, 200, 17, causal="lower_right", window=30),
    Attention(2, 4, 18, 53, 8, key_heads=2, mask="bool", mask_axes="q"),
    Attention(2, 4, 18, 53, 8, mask="bool", mask_axes="b"),
    Attention(2, 4, 18, 53, 8, mask="add", mask_axes="bhq", layout="bshd"),
    Attention(2, 4, 18, 53, 8, key_heads=1, mask="add", causal="upper_left"),
    Attention(1, 3, 33, 40, 20, type="bf16", mask="add", mask_axes="q"),
    Attention(1, 3, 33, 40, 20, type="f16", causal="upper_left", layout="bshd"),
    Attention(1, 1, 1, 1, 1),
]
CONFIGURATIONS = [AttentionMicrokernel(*each) for each in ((1, 16), (2, 48), (3, 48), (4, 24), (2, 4096))]


@pytest.mark.some(3)
@pytest.mark.parametrize("operation", CASES, ids=lambda each: each.name)
def test_the_compilers_default_is_right(operation: Attention):
    verify_tiles([(operation, Default())])


@needs_avx512
@pytest.mark.some(4)
@pytest.mark.parametrize("operation", CASES, ids=lambda each: each.name)
def test_every_kind_of_attention_is_right(operation: Attention):
    verify_tiles([(operation, each) for each in CONFIGURATIONS])


@needs_avx512
@pytest.mark.parametrize(
    "operation",
    [
        Attention(2, 8, 1, 70, 16, key_heads=2),
        Attention(1, 8, 3, 70, 16, key_heads=2, causal="lower_right", layout="bshd"),
        Attention(1, 8, 5, 70, 16, key_heads=1, mask="add", mask_axes="hq"),
        Attention(1, 8, 5, 70, 16, key_heads=2, mask="bool", mask_axes="h", causal="lower_right", window=20),
    ],
    ids=lambda each: each.name,
)
def test_heads_that_share_their_keys_are_computed_together(operation: Attention):
    shared = operation.heads // operation.key_heads
    verify_tiles([(operation, AttentionMicrokernel(*each, shared)) for each in ((1, 16), (2, 48))])


DECODED = [
    Attention(2, 3, 1, 50, 33, value_size=21),
    Attention(2, 8, 1, 300, 16, key_heads=2),
    Attention(1, 8, 2, 70, 48, key_heads=2, layout="bshd"),
    Attention(1, 6, 2, 70, 16, key_heads=2, causal="lower_right"),
    Attention(1, 2, 7, 90, 20, causal="lower_right", window=5, type="bf16"),
    Attention(1, 2, 5, 3, 20, causal="lower_right", type="f16"),  # the first queries see no key
    Attention(1, 2, 4, 50, 130, causal="upper_left", scale=0.5),
    Attention(2, 4, 1, 53, 16, key_heads=2, mask="bool", mask_axes="b"),
    Attention(2, 4, 3, 53, 16, key_heads=2, mask="add", mask_axes="bhq"),
    Attention(1, 4, 2, 47, 16, key_heads=2, mask="add", mask_axes="q", causal="lower_right", type="bf16"),
    Attention(1, 4, 1, 64, 16, mask="bool", mask_axes="h", type="f16"),
    Attention(1, 1, 1, 1, 1),
]


@needs_avx512
@pytest.mark.some(4)
@pytest.mark.parametrize("operation", DECODED, ids=lambda each: each.name)
def test_few_queries_are_right(operation: Attention):
    """In blocks of keys, for heads that share them, and with keys in parts, of which the last ones may have none."""
    shared = operation.heads // operation.key_heads
    together = shared if shared * operation.queries <= 8 else 1
    fields = [(16, 1), (32, together), (1024, 1), (16, together, 2), (1024, 1, 16)]
    verify_tiles([(operation, DecodingMicrokernel(*each)) for each in dict.fromkeys(fields)])


@st.composite
def attentions(draw: st.DrawFn) -> tuple[Operation, Configuration]:
    """Any attention that a microkernel computes, of few elements, with a configuration of it."""
    key_heads, shared = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    causal = draw(st.sampled_from(("", "upper_left", "lower_right")))
    mask = draw(st.sampled_from(("", "bool", "add")))
    operation = Attention(
        draw(st.integers(1, 2)),
        key_heads * shared,
        draw(st.one_of(st.integers(1, 8), st.integers(1, 70))),
        draw(st.integers(1, 140)),
        draw(st.integers(1, 40)),
        key_heads,
        draw(st.integers(1, 40)),
        draw(st.sampled_from(("f32", "f16", "bf16"))),
        draw(st.sampled_from((0.0, 0.25))),
        causal,
        draw(st.sampled_from((0, 1, 20))) if causal else 0,
        mask,
        "".join(each for each in "bhq" if mask and draw(st.booleans())),
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )
    heads = draw(st.sampled_from([each for each in (1, 2, 3) if shared % each == 0]))
    split = draw(st.sampled_from((1, 1, 2, 5)))
    decoding = DecodingMicrokernel(draw(st.sampled_from((16, 48, 1024))), heads, split)
    if decoding.invalid_reason(operation, TARGET.limits) is None and draw(st.booleans()):
        return operation, decoding
    blocks = st.sampled_from((16, 48, 100, 1000))
    return operation, AttentionMicrokernel(draw(st.integers(1, 4)), draw(blocks), heads)


@needs_avx512
@pytest.mark.slow
@settings(max_examples=150)
@given(attentions())
def test_any_attention_is_right(drawn: tuple[Operation, Configuration]):
    verify_tiles([drawn])


def replacing(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


@needs_avx512
def test_planted_faults_are_found():
    operation = Attention(1, 2, 37, 100, 16, causal="lower_right")
    dispatch = Dispatch(operation, AttentionMicrokernel(2, 48))
    faults = {
        "another scale": replacing("dense<2.500000000e-01>", "dense<2.600000000e-01>"),
        "one key more is seen": replacing("dense<63> : vector<16xi32>", "dense<64> : vector<16xi32>"),
    }
    found = failures_of({dispatch: faults})
    assert found[dispatch, ""] == ""
    assert all(found[dispatch, fault] for fault in faults)


def test_a_kernel_belongs_to_its_function():
    """So that a tree, whose source is read from a file, compiles it."""
    operation = Attention(1, 2, 37, 53, 16)
    dispatches = [Dispatch(operation, each) for each in (Default(), *CONFIGURATIONS[:2])]
    functions = functions_of(render_module(operation, dispatches))
    assert list(functions) == [each.name for each in dispatches]
    for each in dispatches:
        kernels = functions[each.name].count("hal.executable.source")
        assert kernels == bool(each.configuration.kernel_suffix)
