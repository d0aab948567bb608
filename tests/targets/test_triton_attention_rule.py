"""Triton kernels of attention: the rule of launches without an entry, what cannot be compiled, and the search space."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.boo.kernels import variants
from dispatch_profiler.compiler.cuda.triton import triton_version
from dispatch_profiler.configurations import Default, Limits, TritonAttention, shipped_configurations, spaces
from dispatch_profiler.operations import Attention, Matmul
from dispatch_profiler.targets import parse_target, untuned_kernels
from dispatch_profiler.targets.untuned.triton.attention import ranked_triton_attention

H200, A100 = parse_target("cuda:h200"), parse_target("cuda:sm_80")
PROMPT = Attention(1, 16, 4096, 4096, 128, type="f16")
DECODING = Attention(1, 32, 1, 8192, 128, key_heads=8, type="bf16")


def first(operation: Attention, target=H200) -> TritonAttention:
    return ranked_triton_attention(operation, target)[0]


def test_a_gpu_launches_the_first_of_the_rule():
    assert next(iter(untuned_kernels(PROMPT, H200))) == first(PROMPT)
    assert variants.has_rule(PROMPT, H200) == bool(triton_version())


def test_without_triton_no_rule_has_a_kernel(monkeypatch):
    """Otherwise each launch would fail to compile it first."""
    monkeypatch.setattr(variants, "triton_version", lambda: "")
    assert not variants.has_rule(PROMPT, H200)


def test_tiles_are_as_large_as_keeps_all_multiprocessors_busy():
    assert first(PROMPT).tile == (128, 128)
    assert first(replace(PROMPT, causal="upper_left")).tile == (64, 64)
    assert first(replace(PROMPT, size=64)).tile == (128, 64)
    assert first(replace(PROMPT, size=64, queries=512)).tile == (64, 64)
    assert first(replace(PROMPT, queries=20, keys=20)).tile == (32, 32)


def test_few_queries_are_those_of_all_heads_that_share_keys_and_have_parts_of_the_keys():
    """8 sets of 4 heads: 16 parts make 128 workgroups, for 132 multiprocessors or 108."""
    assert (first(DECODING).heads, first(DECODING).parts) == (4, 16)
    assert first(DECODING, A100).parts == 8
    assert first(replace(DECODING, keys=100)).parts == 1
    assert first(replace(DECODING, batch=64)).parts == 1
    assert first(replace(DECODING, queries=5)).heads == 2
    assert first(replace(DECODING, key_heads=32)).heads == 1


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("size", [16, 64, 128, 256, 512])
def test_every_attention_has_a_kernel_that_fits_into_shared_memory(size: int, type_: str):
    for target in (H200, A100):
        limits = target.limits
        for operation in (
            replace(PROMPT, size=size, value_size=0, type=type_),
            Attention(1, 2, 3, 7, size, type=type_),
        ):
            ranked = ranked_triton_attention(operation, target)
            assert ranked
            for each in ranked:
                assert each.shared_bytes(operation, each.stages - 1) <= limits.gpu.device_shared_bytes


def test_other_operations_and_targets_have_none():
    assert ranked_triton_attention(Matmul(8, 8, 8), H200) == ()
    assert ranked_triton_attention(PROMPT, parse_target("llvm-cpu")) == ()
    assert ranked_triton_attention(PROMPT, parse_target("cuda:sm_75")) == ()
    assert ranked_triton_attention(replace(PROMPT, type="f64"), H200) == ()


KERNEL = TritonAttention(tile=(64, 64))
GROUPED = Attention(1, 8, 64, 512, 64, type="f16", key_heads=2)


@pytest.mark.parametrize(
    ("configuration", "operation", "message"),
    [
        (KERNEL, Matmul(8, 8, 8), "triton_attention is for attention, not matmul"),
        (replace(KERNEL, tile=(48, 64)), GROUPED, "tile m must be a power of two for Triton, but is 48"),
        (replace(KERNEL, warps=3), GROUPED, "warps must be a power of two for Triton, but is 3"),
        (replace(KERNEL, tile=(8, 64)), GROUPED, "tiles must be at least 16x16x16 for f16, but got 8x64x64"),
        (replace(KERNEL, heads=3), GROUPED, "3 heads cannot be computed together: 4 heads share their keys"),
        (replace(KERNEL, tile=(128, 64)), GROUPED, "a tile of 128 rows is larger than necessary for 64"),
        (replace(KERNEL, parts=9), GROUPED, "512 keys are too few for 9 parts of 64 keys or more"),
        (replace(KERNEL, precision="tf32x3"), GROUPED, "tf32x3 applies to f32 inputs, not f16"),
        (
            replace(KERNEL, stages=20),
            GROUPED,
            "20 stages of 64x64 need 319488 B of shared memory, but sm_90 has 232448: use fewer stages or a smaller tile",
        ),
    ],
)
def test_what_cannot_be_computed_says_why(configuration, operation, message):
    assert configuration.invalid_reason(operation, H200.limits) == message


def test_points_of_the_space_merge_heads_that_share_keys_and_divide_long_sequences():
    (space,) = (each for each in spaces(GROUPED, H200.limits) if each.kind is TritonAttention)
    choices = {axis.name: axis.choices for axis in space.axes}
    assert choices["heads"] == (1, 2, 4)
    assert choices["parts"] == (1, 2, 4, 8, 16, 32)
    assert choices["precision"] == ("ieee",)
    assert TritonAttention.space(GROUPED, Limits()) is None


@pytest.mark.parametrize("operation", [PROMPT, DECODING, Attention(1, 12, 197, 197, 64)])
def test_the_shipped_list_has_kernels_of_an_attention(operation):
    fitting = [
        each.configuration
        for each in shipped_configurations(H200.shipped_list)
        if each.is_for(operation) and each.configuration.invalid_reason(operation, H200.limits) is None
    ]
    assert sum(isinstance(each, TritonAttention) for each in fitting) >= 3
    assert Default() not in fitting[1:]
