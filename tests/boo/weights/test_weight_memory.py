"""The memory of tensors is compared byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from dispatch_profiler.boo.weights.memory import MemoryComparison, copied, place_of  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)


def bytes_of(tensor: Any) -> Any:
    """All bytes of a dense tensor's memory, as an array that writes to it."""
    return tensor.detach().flatten().view(torch.uint8).numpy()


def compared(*tensors: Any) -> MemoryComparison:
    places = [place_of(each) for each in tensors]
    return MemoryComparison(places, [copied(each) for each in places])  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("count", [1, 3, 4095, 4096, 4097, 50_000, 600_000, 600_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_each_bit_counts(dtype: Any, count: int):
    tensors = [torch.randn(count, generator=GENERATOR).to(dtype), torch.randn(7, generator=GENERATOR)]
    comparison = compared(*tensors)
    rng = np.random.default_rng(count)
    assert comparison.is_equal()
    for tensor in tensors:
        memory = bytes_of(tensor)
        for at in {0, memory.size - 1, *map(int, rng.integers(0, memory.size, 20))}:
            bit = np.uint8(1 << int(rng.integers(8)))
            memory[at] ^= bit
            assert not comparison.is_equal(), at
            memory[at] ^= bit
            assert comparison.is_equal()


def test_bytes_are_compared_and_not_numbers():
    nan, zero = torch.full((3,), torch.nan), torch.zeros(9000)
    comparison = compared(nan, zero)
    assert comparison.is_equal()
    zero[8999] = -0.0
    assert not comparison.is_equal()


@pytest.mark.parametrize(
    "view",
    [
        lambda base: base.t(),
        lambda base: base[1:5],
        lambda base: base[:, :5],
        lambda base: base.view(2, 4, 8)[:, :3],
        lambda base: base[0].expand(5, 8),
        lambda base: base[3, 4],
    ],
)
def test_a_copy_has_the_elements_and_strides_of_any_view(view: Any):
    tensor = view(torch.randn(8, 8, generator=GENERATOR))
    copy = copied(place_of(tensor))  # type: ignore[arg-type]
    assert copy is not None
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()


def test_what_is_not_copied():
    base = torch.randn(64, 64, generator=GENERATOR)
    assert copied(place_of(base[:, 3])) is None, "one column spans the memory of all of them"  # type: ignore[arg-type]
    for tensor in (
        torch.empty(0, 3),
        torch.empty(3, device="meta"),
        torch._neg_view(base),
        torch.randn(3, dtype=torch.complex64).conj(),
        base.to_sparse(),
    ):
        assert place_of(tensor) is None
    torch.vmap(lambda row: _check_nowhere(row))(base)


def _check_nowhere(tensor: Any) -> Any:
    assert place_of(tensor) is None
    return tensor
