"""The rule that chooses the microkernel of an attention without an entry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import AttentionMicrokernel, DecodingMicrokernel
from dispatch_profiler.operations import Attention, Matmul
from dispatch_profiler.targets import Target, parse_target, untuned_kernels
from dispatch_profiler.targets.untuned.attention import ranked_attention

LONG = Attention(1, 12, 512, 512, 64, causal="upper_left")
DECODING = Attention(1, 32, 1, 1024, 128, key_heads=8)


@pytest.fixture
def avx512(host_has) -> Target:
    host_has("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "avx2")
    return parse_target("llvm-cpu")


def test_a_launch_has_the_first_of_the_rule(avx512):
    first = next(iter(untuned_kernels(LONG, avx512)))
    assert first == ranked_attention(LONG, avx512)[0] and first.invalid_reason(LONG, avx512.limits) is None


@pytest.mark.parametrize("threads", [1, 2, 12, 48, 96])
def test_more_threads_have_fewer_queries_each(avx512, threads: int):
    """12 heads of 128 queries: in blocks of 64, they are 24 units."""
    operation = Attention(1, 12, 128, 128, 64)
    ranked = ranked_attention(operation, avx512, threads)
    assert {each.vectors for each in ranked} == {1, 2, 3, 4}
    units = [12 * -(-128 // (16 * each.vectors)) for each in ranked]
    rounds = [-(-count // threads) * each.vectors for count, each in zip(units, ranked, strict=True)]
    assert rounds[0] <= 1.5 * min(rounds)


def test_few_queries_read_each_key_once(avx512):
    """For all heads that share it, as far as a kernel has rows."""
    assert ranked_attention(DECODING, avx512, 2)[0] == DecodingMicrokernel(256, 4)
    assert ranked_attention(replace(DECODING, queries=2), avx512, 2)[0] == DecodingMicrokernel(256, 4)
    assert ranked_attention(replace(DECODING, queries=4), avx512, 2)[0] == DecodingMicrokernel(256, 2)
    assert {each.heads for each in ranked_attention(replace(DECODING, queries=512), avx512)} == {1}


@pytest.mark.parametrize("threads", [1, 2, 8, 16, 64])
def test_keys_are_split_if_threads_would_be_idle(avx512, threads: int):
    """8 groups of heads: with more threads, each has parts of the keys, unless there are too few for a second kernel."""
    first, few = (ranked_attention(replace(DECODING, keys=keys), avx512, threads)[0] for keys in (8192, 64))
    assert few == DecodingMicrokernel(256, 4)
    rounds = -(-8 * first.parts // threads) / first.parts
    assert rounds == max(1 / 16, 8 / threads)
    assert first.parts == 1 or 8 % threads


def test_few_keys_are_one_block(avx512):
    assert {each.block for each in ranked_attention(replace(LONG, keys=197), avx512)} == {96}
    assert {each.block for each in ranked_attention(replace(LONG, keys=128), avx512)} == {128}


@pytest.mark.parametrize(
    "operation",
    [Matmul(16, 16, 16), replace(LONG, type="f64"), replace(LONG, logsumexp=True)],
    ids=lambda o: o.name,
)
def test_there_is_none_for_other_operations(avx512, operation):
    assert ranked_attention(operation, avx512) == ()


@pytest.mark.parametrize("target", ["llvm-cpu:x86-64-v3", "cuda:sm_90"])
def test_there_is_none_for_other_hardware(target):
    found = untuned_kernels(LONG, parse_target(target))
    assert not any(isinstance(each, AttentionMicrokernel) for each in found)
