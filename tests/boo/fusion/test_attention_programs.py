"""Attention between products is one kernel, which reads queries, keys and values where the products left them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import check_close, launched
from torch.nn import functional
from vector_units import needs_avx512

from dispatch_profiler.boo.backends.graph_compiler import backend
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.attention import attention_geometry
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.configurations import AttentionMicrokernel, DecodingMicrokernel, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Attention
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import parse_target, untuned_kernels

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
KERNEL = "hal.executable.source"
TARGET = parse_target("llvm-cpu")
BATCH, HEADS, SIZE = 2, 3, 20
WIDTH = HEADS * SIZE
attend: Any = functional.scaled_dot_product_attention


def heads_of(x: Any) -> Any:
    return x.view(BATCH, -1, HEADS, SIZE).transpose(1, 2)


def joined(x: Any) -> Any:
    return x.transpose(1, 2).reshape(BATCH, -1, WIDTH)


def separate(x: Any, **options: Any) -> Any:
    """As BERT has it: a product for each of queries, keys and values."""
    return joined(attend(*(heads_of(x @ torch.eye(WIDTH)) for _ in range(3)), **options))


def unbound(x: Any, **options: Any) -> Any:
    """As vision transformers have it: one product, whose result is permuted."""
    every = (x @ torch.ones(WIDTH, 3 * WIDTH)).reshape(BATCH, -1, 3, HEADS, SIZE)
    return joined(attend(*every.permute(2, 0, 3, 1, 4).unbind(0), **options))


def split(x: Any, **options: Any) -> Any:
    """As GPT-2 has it."""
    return joined(attend(*map(heads_of, (x @ torch.ones(WIDTH, 3 * WIDTH)).split(WIDTH, 2)), **options))


def selected(x: Any, **options: Any) -> Any:
    """As torch's MultiheadAttention has it: copied, with the positions first."""
    every = (x.transpose(0, 1) @ torch.ones(WIDTH, 3 * WIDTH)).unflatten(-1, (3, WIDTH))
    parts = every.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    taken = (parts[at].view(-1, BATCH * HEADS, SIZE).transpose(0, 1) for at in range(3))
    result = attend(*(each.view(BATCH, HEADS, -1, SIZE) for each in taken), **options)
    return result.permute(2, 0, 1, 3).reshape(-1, WIDTH)


LAYOUTS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (separate, unbound, split, selected)
}


def programs_of(function: Callable[..., Any], *tensors: Any) -> list[Any]:
    """The programs behind products that the products of `function` read, and before another product."""

    def compute(x: Any, *others: Any) -> Any:
        return function(x @ torch.eye(WIDTH), *others) @ torch.ones(WIDTH, 8)

    graph = inference_graph(compute, *tensors).graph
    regions, _ = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    return [each.spec.operation for each in find_glue(graph, regions)]


def attention_of(function: Callable[..., Any], *tensors: Any) -> OperatorProgram:
    (program,) = (each for each in programs_of(function, *tensors) if "attention" in each.name)
    assert isinstance(program, OperatorProgram)
    assert KERNEL in program.mlir("f")
    return program


def check(program: OperatorProgram, change: Callable[[list[np.ndarray]], None] = lambda _: None) -> None:
    """The kernel computes what torch computes in float64."""
    rng = np.random.default_rng(5)
    for distribution in program.distributions:
        operands = [program.draw(each, distribution, rng) for each in program.operands]
        change(operands)
        (found,), (reference,) = launched(program, operands), program.reference(operands)
        check_close(found, reference)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_read_where_they_are(layout: str) -> None:
    program = attention_of(LAYOUTS[layout], torch.randn(BATCH, 21, WIDTH))
    of = attention_geometry(program)
    assert (of.batch, of.heads, of.queries, of.keys, of.size) == (BATCH, HEADS, 21, 21, SIZE)
    assert len(program.inputs) == (3 if layout == "separate" else 1)
    assert program.tuned_as == Attention(BATCH, HEADS, 21, 21, SIZE, layout="bshd")
    check(program)


def test_a_causal_attention_hides_later_keys() -> None:
    def function(x: Any, keys: Any) -> Any:
        query, key = heads_of(x @ torch.eye(WIDTH)), heads_of(keys @ torch.eye(WIDTH))
        return joined(attend(query, key, key, is_causal=True, scale=0.3))

    for queries, keys in ((33, 33), (20, 50), (50, 20), (1, 3)):
        program = attention_of(function, torch.randn(BATCH, queries, WIDTH), torch.randn(BATCH, keys, WIDTH))
        of = attention_geometry(program)
        assert (of.causal, of.visibility.offset, of.scale) == ("upper_left", 0, 0.3)
        check(program)


def test_scores_may_be_large() -> None:
    """As those of T5, whose scale is 1: rounding them changes their exponentials."""

    def function(x: Any) -> Any:
        return joined(attend(*(heads_of(x @ torch.eye(WIDTH)) for _ in range(3)), scale=3.0))

    check(attention_of(function, torch.randn(BATCH, 70, WIDTH)))


@pytest.mark.parametrize("shape", [(BATCH, 1, 1, 19), (1, 1, 19, 19), (BATCH, HEADS, 19, 19)], ids=str)
def test_masks_are_added(shape: tuple[int, ...]) -> None:
    """A query whose keys are all hidden has zeros, as in torch."""

    def function(x: Any, mask: Any) -> Any:
        return separate(x, attn_mask=mask)

    program = attention_of(function, torch.randn(BATCH, 19, WIDTH), torch.zeros(shape))
    place = next(at for at, each in enumerate(program.inputs) if each.shape == shape)

    def hide(operands: list[np.ndarray]) -> None:
        rng = np.random.default_rng(7)
        operands[place][rng.random(shape) < 0.4] = -np.inf
        operands[place][0, ..., 3 % shape[2], :] = -np.inf

    check(program)
    check(program, hide)
    axes = "".join(letter for letter, extent in zip("bhq", shape, strict=False) if extent > 1)
    assert program.tuned_as == Attention(
        BATCH, HEADS, 19, 19, SIZE, mask="add", mask_axes=axes, layout="bshd"
    )


@needs_avx512
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_decoded_token_reads_each_key_once(is_masked: bool) -> None:
    """Of two heads of queries for each head of keys, in the caches of keys and values of a model."""
    heads, keys = 4, 23

    def function(x: Any, keys: Any, values: Any, mask: Any) -> Any:
        query = x.view(BATCH, 1, 2 * heads, SIZE).transpose(1, 2)
        result = attend(query, keys, values, attn_mask=mask if is_masked else None, enable_gqa=True)
        return result.transpose(1, 2).reshape(BATCH, 1, -1)[..., :WIDTH]

    caches = [torch.randn(BATCH, heads, keys, SIZE) for _ in range(2)]
    width = 2 * heads * SIZE

    def compute(x: Any, *others: Any) -> Any:
        return function(x @ torch.ones(WIDTH, width), *others) @ torch.ones(WIDTH, 8)

    graph = inference_graph(compute, torch.randn(BATCH, 1, WIDTH), *caches, torch.zeros(BATCH, 1, 1, keys))
    regions, _ = find_regions(graph.graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    (program,) = (
        each.spec.operation
        for each in find_glue(graph.graph, regions)
        if each.spec.operation.attention is not None
    )
    check(program)
    first = next(iter(untuned_kernels(program, TARGET)))
    assert isinstance(first, DecodingMicrokernel) and first.heads == 2


@needs_avx512
def test_an_entry_of_the_attention_without_views_is_used() -> None:
    program, entry = attention_of(unbound, torch.randn(BATCH, 21, WIDTH)), AttentionMicrokernel(2, 16)
    iree = f"compiler {IreeCompiler().revision}, runtime 3.13.0"
    provenance = Provenance("local-task", "llvm-cpu", iree, 7, flags=TARGET.compile_flags)
    faster = Estimate(2.0, 1.9, 2.1)
    library = Library([Entry(Dispatch(program.tuned_as, entry), faster, faster, provenance)])

    lookup = TunedConfigurations(library, TARGET, IreeCompiler().revision).of(program)
    assert lookup.dispatch == Dispatch(program, Tuned(entry)) and not lookup.tuned_from
    vectors = {each.vectors for each in untuned_kernels(program, TARGET)}
    assert vectors == {1, 2, 3, 4}
    others = TunedConfigurations(Library(), TARGET, IreeCompiler().revision).of(program)
    assert others.dispatch is None


def test_nan_and_infinity_reach_the_rows_that_read_them() -> None:
    def spoil(operands: list[np.ndarray]) -> None:
        operands[0].reshape(-1)[WIDTH + 5] = np.nan

    check(attention_of(separate, torch.randn(BATCH, 18, WIDTH)), spoil)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "size"), [(1, 1), (2, 7), (5, 64), (1, 128), (12, 36), (3, 100)])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 64, 129, 300])
def test_any_size_and_length(heads: int, size: int, length: int) -> None:
    def function(x: Any) -> Any:
        every = (x @ torch.ones(WIDTH, 3 * heads * size)).reshape(1, length, 3, heads, size)
        result = attend(*every.permute(2, 0, 3, 1, 4).unbind(0), is_causal=length % 2 == 1)
        return result.transpose(1, 2).reshape(1, length, -1) @ torch.ones(heads * size, WIDTH)

    check(attention_of(function, torch.randn(1, length, WIDTH)))


@pytest.mark.some(2)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("repeats", [True, False])
def test_heads_of_queries_share_heads_of_keys(heads: int, repeats: bool) -> None:
    """Of six heads of queries: keys and values are repeated in the graph, as transformers does, or by the operator."""
    count, size = 6, 10

    def function(x: Any) -> Any:
        queries, *others = (x @ torch.ones(WIDTH, (count + 2 * heads) * size)).split(
            [count * size, heads * size, heads * size], 2
        )
        query = queries.view(BATCH, -1, count, size).transpose(1, 2)
        key, value = (each.view(BATCH, -1, heads, size).transpose(1, 2) for each in others)
        if repeats:
            key, value = (
                each[:, :, None].expand(-1, -1, count // heads, -1, -1).reshape(BATCH, count, -1, size)
                for each in (key, value)
            )
        return joined(attend(query, key, value, enable_gqa=not repeats))

    program = attention_of(function, torch.randn(BATCH, 19, WIDTH))
    assert (attention_geometry(program).shared, len(program.inputs)) == (count // heads, 1)
    check(program)


def test_a_mask_without_vectors_is_copied_first() -> None:
    def function(x: Any) -> Any:
        every = heads_of(x @ torch.eye(WIDTH))
        return joined(attend(every, every, every, attn_mask=(every @ every.mT).transpose(2, 3)))

    x = torch.randn(BATCH, 19, WIDTH)
    program = attention_of(function, x)
    names = [name.strip("_").partition("_dot")[0] for name, _, _ in program.parsed_calls]
    assert names == ["scaled", "getitem"]
    check(program)
    titles = [each.title for each in programs_of(function, x)]
    assert titles == ["reshape_transpose", "reshape_transpose", "attention", "transpose"]


def test_what_the_kernel_cannot_compute_is_left_to_torch() -> None:
    def dropping(x: Any) -> Any:
        return joined(attend(*[heads_of(x)] * 3, dropout_p=0.5))

    def doubled(x: Any) -> Any:
        return joined(attend(*[heads_of(x.double())] * 3)).float()

    for function in (dropping, doubled):
        programs = programs_of(function, torch.randn(BATCH, 9, WIDTH))
        assert not any("attention" in each.name for each in programs)


def test_a_program_with_more_than_an_attention_has_no_plan() -> None:
    program = attention_of(unbound, torch.randn(BATCH, 21, WIDTH))
    returned = len(program.inputs) + len(program.parsed_calls)
    calls = f'{program.calls[:-1]},["relu",[{{"value":{returned - 1}}}],{{}}]]'
    with pytest.raises(NotFusible, match="relu is no view"):
        attention_geometry(OperatorProgram("more", program.inputs, calls, (returned,), program.outputs))


def test_a_layer_of_a_transformer_is_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to torch, so that the backend returns the run itself."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 11, 32)
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    ours = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, autotune=False, strict=True)
    compiled: Any = torch.compile(layer, backend=ours, dynamic=False)
    with torch.inference_mode():
        expected = layer(x)
        for _ in range(3):
            assert torch.allclose(compiled(x), expected, atol=1e-5)
