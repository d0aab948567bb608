"""A graph that the cache knows as runs is called at once; what differs in anything is traced again."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import Block, check_alike, check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend, graph_compiler, known_graphs
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS
from dispatch_profiler.boo.kernels import variants
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache

STRICT = backend(strict=True)


@pytest.fixture(autouse=True)
def cache(cache_of_kernels: Path) -> Path:
    """The cache of this test alone, which knows no graphs."""
    return cache_of_kernels


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of Dynamo that AOTAutograd gets."""
    found: list[Any] = []
    compiled_by = graph_compiler.compiled_by

    def note(compile_graph: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        found.append(module)
        return compiled_by(compile_graph, module, *arguments, **options)

    monkeypatch.setattr(graph_compiler, "compiled_by", note)
    return found


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 8, 6, 6)).to(memory_format=torch.channels_last)


def convolution(weight: int = 8, **options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, weight, 3, **options), nn.ReLU()).eval()


def texts(cache: Path) -> list[Path]:
    """The files of graphs."""
    return [each.path for each in Cache(cache).entries() if each.name.startswith("graph_of_")]


def test_the_first_compile_and_a_known_graph_are_summed_up_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, LOGGER), torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            torch.compile(convolution(), backend=STRICT)(images())
    first, second = (each for each in caplog.messages if " graph: " in each)
    counts = (
        "1 region: 1 predicted; 1 operation to tune (dispatch-profiler explain, dispatch_profiler.misses())"
    )
    assert first == f"inference graph: {counts}" and second == f"known graph: {counts}"


@pytest.mark.slow
def test_a_known_graph_is_not_traced_again(traced: list[Any], cache: Path) -> None:
    check_equals_eager(Block().eval(), STRICT, images())
    check_equals_eager(Block().eval(), STRICT, images())  # with other parameters
    assert (len(traced), len(texts(cache))) == (1, 1)


@pytest.mark.slow
def test_inductor_is_left_out_in_the_same_way(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_compiler.GraphCompiler, "compile_nested", None)
    for _ in range(2):
        check_equals_eager(Block().eval(), backend("inductor"), images())
    assert len(traced) == 1
    for _ in range(2):  # whose results may have other strides along axes with one element
        check_equals_eager(Block().eval(), backend(), images())
    assert len(traced) == 2


def test_parameters_may_change_and_be_replaced(traced: list[Any]) -> None:
    model = Block().eval()
    check_equals_eager(model, STRICT, images())
    compiled = check_equals_eager(model, STRICT, images())
    with torch.no_grad():
        model.conv1.weight.mul_(-2)
        model.norm1.weight = nn.Parameter(torch.rand(8))
        x = images()
        check_alike(compiled(x), model(x))
    assert len(traced) == 1


def weights(x: Any, one: Any, other: Any) -> Any:
    return functional.conv2d(functional.conv2d(x, one).relu(), other)


class Swapped(nn.Module):
    """As `weights`, which a graph takes in another order."""

    def forward(self, x: Any, one: Any, other: Any) -> Any:
        return functional.conv2d(functional.conv2d(x, other).relu(), one)


DIFFERENT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a stride": (convolution(stride=2), (images(),)),
    "padding": (convolution(padding=1), (images(),)),
    "a bias": (convolution(bias=False), (images(),)),
    "filters": (convolution(4), (images(),)),
    "a batch": (convolution(), (images(3, 8, 6, 6),)),
    "strides": (convolution(), (torch.randn(2, 8, 6, 6),)),
    "a type": (convolution().double(), (images().double(),)),
    "an activation": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.Hardtanh(0, 1)).eval(), (images(),)),
    "a limit": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.Hardtanh(0, 2)).eval(), (images(),)),
    "no parameters": (weights, (images(), torch.randn(8, 8, 1, 1), torch.randn(8, 8, 1, 1))),
    "an order": (Swapped().eval(), (images(), torch.randn(8, 8, 1, 1), torch.randn(8, 8, 1, 1))),
}


@pytest.mark.slow
def test_what_differs_is_traced(traced: list[Any]) -> None:
    check_equals_eager(convolution(), STRICT, images())
    for count, (model, inputs) in enumerate(DIFFERENT.values(), start=2):
        check_equals_eager(model, backend(), *inputs)
        assert len(traced) == count


FILTERS = torch.randn(8, 8, 1, 1)


@pytest.mark.slow
def test_functions_with_one_name_in_python_differ(traced: list[Any]) -> None:
    """torch has the same code for all of these, so that only their names tell them apart."""
    x = images(1, 8, 6, 6)
    for pool in (functional.max_pool2d, lambda x, size: functional.adaptive_max_pool2d(x, 3)):
        check_equals_eager(
            lambda x, pool=pool: pool(torch.relu(functional.conv2d(x, FILTERS)), 2), backend(), x
        )
    assert len(traced) == 2


@pytest.mark.slow
def test_results_are_those_of_the_mode(traced: list[Any]) -> None:
    model, x = convolution().requires_grad_(requires_grad=False), images()
    for _ in range(2):
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            torch._dynamo.reset()
            with mode():
                found, expected = torch.compile(model, backend=STRICT, dynamic=False)(x), model(x)
            check_alike(found, expected)
            assert (found.requires_grad, found.is_inference()) == (
                expected.requires_grad,
                expected.is_inference(),
            )
    assert 2 <= len(traced) <= 3  # Dynamo leaves inference mode while it compiles


def test_a_schema_is_part_of_the_key(traced: list[Any]) -> None:
    without_norms = DEFAULT_SUPPORTED_BOO_FUSIONS.without("layer_norm")
    for schema in (DEFAULT_SUPPORTED_BOO_FUSIONS, without_norms):
        check_equals_eager(convolution(), backend(fusion_schema=schema), images())
    assert len(traced) == 2


def test_gradients_are_traced(traced: list[Any], cache: Path) -> None:
    for _ in range(2):
        torch._dynamo.reset()
        model, x = convolution(), images()
        eager = copy.deepcopy(model)
        torch.compile(model, backend=backend(), dynamic=False)(x).sum().backward()
        eager(x).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, eager[0].weight.grad)
    assert (len(traced), texts(cache)) == (2, [])


# -- what has other effects than its results, or depends on more than the key has ------------------------


def writes_to_its_input(x: Any, w: Any) -> Any:
    x.mul_(2)
    return functional.conv2d(x, w)


def returns_its_input(x: Any, w: Any) -> Any:
    return x, functional.conv2d(x, w)


def returns_a_view_of_a_result(x: Any, w: Any) -> Any:
    y = functional.conv2d(x, w)
    return y, y[:, :2]


def returns_nothing_new(x: Any, w: Any) -> Any:
    functional.conv2d(x, w)
    return x.relu_()


def has_a_constant(x: Any, w: Any) -> Any:
    return functional.conv2d(x, w) + torch.ones(1)


@torch.compiler.allow_in_graph
def doubled(x: Any) -> Any:
    return x * 2


def calls_a_function(x: Any, w: Any) -> Any:
    return doubled(functional.conv2d(x, w))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (writes_to_its_input, 2),
        (returns_its_input, 1),  # which Dynamo does itself: the graph has only the convolution
        (returns_a_view_of_a_result, 2),
        (returns_nothing_new, 2),
        (has_a_constant, 2),
        (calls_a_function, 2),
    ],
)
def test_other_effects_are_computed_each_time(
    traced: list[Any], function: Callable[..., Any], count: int
) -> None:
    """Each time with inputs of its own. A write to one result is seen in others and inputs as in eager torch."""
    for _ in range(2):
        torch._dynamo.reset()
        x, w = images(), torch.randn(8, 8, 1, 1)
        other = x.clone(memory_format=torch.preserve_format)
        compiled = torch.compile(function, backend=backend(), dynamic=False)
        with torch.no_grad():
            found, expected = compiled(x, w), function(other, w)
            check_alike((found, x), (expected, other))
            for each in (found, expected):
                (each[0] if isinstance(each, tuple) else each).zero_()
            check_alike((found, x), (expected, other))
    assert len(traced) == count


def replaced_relu(x: Any, inplace: bool = False) -> Any:
    return torch.clamp(x, min=0) * 2


def test_replaced_functions_are_traced(
    traced: list[Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the graph, those that they call, and methods: their names say no longer what they compute."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval()
    for holder in (functional, torch, torch.Tensor):
        with monkeypatch.context() as patches:
            patches.setattr(holder, "relu", functools.wraps(holder.relu)(replaced_relu))
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(model, backend=backend(), dynamic=False)(images())
    assert (len(traced), texts(cache)) == (3, [])
    check_equals_eager(model, backend(), images())
    assert len(texts(cache)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_operators_with_kernels_of_the_program_are_traced(traced: list[Any]) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU6()).eval()
    check_equals_eager(model, STRICT, images())
    library = torch.library.Library("aten", "IMPL")
    needed = {"allow_override"} & inspect.signature(library.impl).parameters.keys()  # not by torch 2.6
    try:
        library.impl(
            "relu6",
            lambda x: torch.clamp(x, 0, 3),
            "CompositeImplicitAutograd",
            **dict.fromkeys(needed, True),
        )
        check_equals_eager(model, backend(), images())
    finally:
        library._destroy()
    check_equals_eager(model, STRICT, images())
    assert len(traced) == 2


@pytest.mark.slow
def test_dynamic_shapes_are_traced(traced: list[Any], cache: Path) -> None:
    model = convolution()
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend(), dynamic=True)
        with torch.no_grad():
            for batch in (2, 3):
                x = images(batch, 8, 6, 6)
                check_alike(compiled(x), model(x))
    assert len(traced) >= 2
    assert texts(cache) == []


def test_autocast_is_traced(traced: list[Any], cache: Path) -> None:
    model, x = convolution(), images()
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = torch.compile(model, backend=backend(), dynamic=False)(x)
            torch.testing.assert_close(found, model(x), rtol=0.02, atol=0.02)
    assert (len(traced), texts(cache)) == (2, [])


def test_graphs_that_depend_on_the_number_of_threads_are_known_for_the_threads_at_hand(
    traced: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regions that were measured may be slower than torch on others."""
    monkeypatch.setattr(variants, "MOST_CANDIDATES", 1)
    for autotune, freeze, counts in (("0", True, (1, 1)), ("0", False, (2, 2)), ("quick", False, (3, 4))):
        monkeypatch.setenv("BOO_AUTOTUNE", autotune)
        made = replace(
            backend(freeze=freeze),
            measure_region=lambda *each: [1.0] * len(each),
            measure_graph=fused_wins,
        )
        for threads, count in zip((1, 2), counts, strict=True):
            monkeypatch.setattr(graph_compiler, "usable_threads", lambda threads=threads: threads)
            for _ in range(2):
                check_equals_eager(convolution(), made, images())
            assert len(traced) == count


def fused_wins(functions: Any) -> list[list[float]]:
    return [[2.0], [1.0]]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["autotune", "nested"])
def test_other_backends_get_their_graphs(traced: list[Any], option: str) -> None:
    check_equals_eager(convolution(), backend(), images())
    other = backend(autotune=True) if option == "autotune" else backend("aot_eager")
    check_equals_eager(convolution(), other, images())
    assert len(traced) == 2


def test_without_a_cache_nothing_is_known(
    traced: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "unused"))
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    for _ in range(2):
        check_equals_eager(convolution(), STRICT, images())
    assert (len(traced), (tmp_path / "unused").exists()) == (2, False)


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_torch_can_turn_caches_off(traced: list[Any], cache: Path) -> None:
    from torch._inductor import config

    patched: Any = config
    with patched.patch(force_disable_caches=True):
        for _ in range(2):
            check_equals_eager(convolution(), STRICT, images())
    assert (len(traced), texts(cache)) == (2, [])


# -- what is in the cache --------------------------------------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("junk", ["", "{}", "[]", '{"inputs": 3, "calls": [], "outputs": [0]}'])
def test_junk_is_traced_over(traced: list[Any], cache: Path, junk: str) -> None:
    check_equals_eager(convolution(), STRICT, images())
    (path,) = texts(cache)
    before = Cache(cache).get_text(path.stem)
    Cache(cache).put_text(path.stem, junk, "graph_of_2_regions")
    check_equals_eager(convolution(), STRICT, images())
    assert (len(traced), Cache(cache).get_text(path.stem)) == (2, before)


def test_another_graph_is_traced_over(traced: list[Any], cache: Path) -> None:
    """One with as many inputs and outputs, of another shape."""
    check_equals_eager(convolution(), STRICT, images())
    (path,) = texts(cache)
    check_equals_eager(convolution(padding=1), STRICT, images())
    (other,) = set(texts(cache)) - {path}
    text = Cache(cache).get_text(other.stem)
    assert text is not None
    Cache(cache).put_text(path.stem, text, "graph_of_1_regions")
    check_equals_eager(convolution(), STRICT, images())
    assert len(traced) == 3


@pytest.mark.slow
def test_kernels_that_were_removed_are_compiled_again(
    traced: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Cache(tmp_path / "empty at first")
    monkeypatch.setenv("BOO_CACHE_DIR", str(found.folder))
    check_equals_eager(Block().eval(), STRICT, images())
    kernels = [each for each in found.entries() if not each.name.startswith("graph_of_")]
    found.remove(kernels)
    SESSION.clear("kernels")
    check_equals_eager(Block().eval(), STRICT, images())
    assert len(traced) == 1
    assert {each.name for each in kernels} <= {each.name for each in found.entries()}


def test_regions_without_kernels_are_left_out(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_equals_eager(convolution(), backend(), images())
    monkeypatch.setattr(
        "dispatch_profiler.boo.backends.region_kernels.prepare_kernels",
        lambda each, *_, **__: dict.fromkeys(each, "no"),
    )
    check_equals_eager(convolution(), backend(), images())
    assert len(traced) == 2


def test_what_fails_for_a_known_graph_is_traced(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_equals_eager(convolution(), backend(), images())

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("dispatch_profiler.boo.backends.region_kernels.prepare_kernels", fail)
    check_equals_eager(convolution(), backend(), images())
    assert len(traced) == 2


@pytest.mark.parametrize("variable", ["BOO_CACHE_ON", "BOO_TUNING_SPEC_PATH"])
def test_invalid_settings_leave_the_model_to_torch(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    check_equals_eager(convolution(), backend(), images())
    monkeypatch.setenv(variable, "maybe")
    check_equals_eager(convolution(), backend(), images())
    check_equals_eager(lambda x: x + 1, backend(), images())


def test_an_entry_with_other_outputs_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a graph returned a result twice, or an input."""
    kept: list[tuple[known_graphs.GraphEntry, RunGraph]] = []
    monkeypatch.setattr(known_graphs.GraphEntry, "keep", lambda self, graph: kept.append((self, graph)))
    check_equals_eager(convolution(), STRICT, images())
    ((entry, graph),) = kept
    result = graph.inputs
    assert entry.fits(graph)
    for outputs in ((), (0,), (None,), (result, result), (result, 0)):
        assert not entry.fits(replace(graph, outputs=outputs))
    assert not entry.fits(replace(graph, inputs=graph.inputs + 1, outputs=(result + 1,)))


# That inductor is left out in the same way, a test above checks in this process.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["iree_boo", pytest.param("iree_boo_inductor", marks=pytest.mark.slow)])
def test_a_new_process_only_calls_the_runs(name: str, cache: Path) -> None:
    program = f"""
import sys
import torch
from dispatch_profiler.boo.backends import graph_compiler
if len(sys.argv) > 1:
    graph_compiler.compiled_by = None
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(8, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 4, 1))
x = torch.randn(1, 8, 8, 8).to(memory_format=torch.channels_last)
with torch.inference_mode():
    found = torch.compile(model, backend="{name}", dynamic=False)(x)
    torch.testing.assert_close(found, model(x))
print(torch.__version__, found.double().sum().item())
"""
    runs = [
        subprocess.run([sys.executable, "-c", program, *more], capture_output=True, text=True)
        for more in ([], ["known"])
    ]
    assert runs[0].stdout == runs[1].stdout != "", runs[1].stderr
