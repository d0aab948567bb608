"""`boo_attention` computes what torch computes, with our kernels, and so do its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close  # noqa: E402
from recorded_launches import recorded_copies, recorded_launches  # noqa: E402
from vector_units import needs_avx512  # noqa: E402

from dispatch_profiler.boo.ops import boo_attention  # noqa: E402
from dispatch_profiler.boo.session import SESSION  # noqa: E402

theirs = torch.nn.functional.scaled_dot_product_attention
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 4, 5, 9, 8


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> None:
    SESSION.clear("attentions")


@pytest.fixture
def launched() -> Iterator[list[Any]]:
    with recorded_launches() as found:
        yield found


def tensors(
    dtype: str = "float32", key_heads: int = HEADS, queries: int = QUERIES, is_transposed: bool = False
) -> list[Any]:
    """Query, key and value; transposed: positions are before heads in memory."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, queries), (key_heads, KEYS), (key_heads, KEYS))
    made = []
    for heads, positions in shapes:
        middle = (positions, heads) if is_transposed else (heads, positions)
        each = torch.randn(BATCH, *middle, SIZE, generator=generator).to(getattr(torch, dtype))
        made.append(each.transpose(1, 2) if is_transposed else each)
    return made


def mask_of(kind: str, dtype: str = "float32") -> Any:
    """None, or a mask that hides about a third of the keys, but not the first one."""
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(QUERIES, KEYS, generator=generator) > 0.3
    seen[:, 0] = True
    added = torch.where(seen, 0.5, -torch.inf).to(getattr(torch, dtype))
    return {"none": None, "bool": seen, "add": added[None, None].expand(BATCH, 1, -1, -1)}[kind]


@needs_avx512
@pytest.mark.some(3)
@pytest.mark.parametrize("is_transposed", [False, True], ids=["bhsd", "bshd"])
@pytest.mark.parametrize("kind", ["none", "bool", "add", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_and_gradients_are_those_of_torch(
    dtype: str, kind: str, is_transposed: bool, launched: list[Any]
):
    mask = None if kind == "causal" else mask_of(kind, dtype)
    outcomes = []
    for function in (boo_attention, theirs):
        leaves = [each.clone().requires_grad_() for each in tensors(dtype, 2, is_transposed=is_transposed)]
        y = function(*leaves, mask, is_causal=kind == "causal", scale=0.3, enable_gqa=True)
        y.square().sum().backward()
        outcomes.append([y, *(each.grad for each in leaves)])
    assert all(map(close, *outcomes))
    assert len(launched) == 1


@needs_avx512
@pytest.mark.parametrize("is_transposed", [False, True], ids=["bhsd", "bshd"])
def test_neither_operands_nor_result_are_copied(is_transposed: bool, launched: list[Any]):
    args = tensors(is_transposed=is_transposed)
    for _ in range(2):
        launched.clear()
        with recorded_copies() as copies:
            y = boo_attention(*args)
        assert not copies
        assert launched[0].reads == tuple(each.data_ptr() for each in args)
        assert launched[0].writes[0] == y.data_ptr()
    assert y.stride() == args[0].stride()


@needs_avx512
def test_a_mask_has_gradients(launched: list[Any]):
    outcomes = []
    for function in (boo_attention, theirs):
        mask = torch.linspace(-1, 1, KEYS).repeat(QUERIES, 1).requires_grad_()
        function(*tensors(), mask).square().sum().backward()
        outcomes.append(mask.grad)
    assert close(*outcomes) and len(launched) == 1


def test_what_kernels_do_not_compute_is_computed_by_torch(launched: list[Any]):
    query, key, value = tensors()
    torch.manual_seed(2)
    dropped = boo_attention(query, key, value, dropout_p=0.5)
    torch.manual_seed(2)
    assert torch.equal(dropped, theirs(query, key, value, dropout_p=0.5))
    for args in ([query.double(), key.double(), value.double()], [query[0], key[0], value[0]]):
        assert close(boo_attention(*args), theirs(*args))
    assert boo_attention(query[:, :, :0], key, value).shape == (BATCH, HEADS, 0, SIZE)
    compiled = torch.compile(boo_attention, backend="aot_eager")
    assert close(compiled(query, key, value), theirs(query, key, value))
    assert not launched


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q, k[:, :2], v[:, :2]),
        lambda q, k, v: (q, k[..., :4], v),
        lambda q, k, v: (q, k.double(), v),
        lambda q, k, v: (q, k, v, torch.ones(3, 3)),
        lambda q, k, v: (q, None, v),
    ],
    ids=["heads", "sizes", "types", "mask", "none"],
)
def test_torch_rejects_what_is_invalid(change: Any):
    args = change(*tensors())
    errors = []
    for function in (boo_attention, theirs):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            function(*args)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
