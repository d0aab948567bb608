"""A run's text: canonical, and checked when it is read."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.fusion.spec import RegionSignature, RegionSpec, RunSpec, parse_run
from dispatch_profiler.errors import UsageError


@cache
def specs() -> list[RegionSpec]:
    w, b = torch.randn(8, 4, 3, 3), torch.rand(8)

    def function(x: Any) -> Any:
        y = functional.batch_norm(functional.conv2d(x, w), b.clone(), b.clone())
        y = functional.linear(functional.layer_norm(y, [4]), torch.ones(6, 4)).relu()
        return functional.conv_transpose2d(y, w, stride=2)

    graph = inference_graph(function, torch.randn(2, 4, 6, 6)).graph
    return [region.spec for region in find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)[0]]


def test_a_text_is_the_region() -> None:
    found = specs()
    assert len(found) == 4
    for spec in found:
        run = run_of(spec)
        assert parse_run(run.text) == run
        assert len(RegionSignature(spec.operation).launch.arguments) == len(spec.sources)


def run_of(spec: RegionSpec) -> RunSpec:
    count = len(spec.inputs)
    return RunSpec(count, ((spec, tuple(range(count))),), (count,))


def changed(**values: Any) -> str:
    data = json.loads(run_of(specs()[0]).text)
    region = data["steps"][0][0]
    (data if values.keys() <= {"steps", "outputs", "count"} else region).update(values)
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "values",
    [
        {"extra": 1},
        {"operation": {"kind": "unknown"}},
        {"operation": {}},
        {"inputs": [[2, 4, 6, -6]]},
        {"inputs": [[2, 4, 6, 2**60]] * 4},
        {"inputs": [[1, 1, 1, 1, 1, 1]] * 6},
        {"inputs": [[1]] * 100},
        {"inputs": "abc"},
        {"sources": [["rows", [0], 0.0]]},
        {"sources": [["rows", [7], 0.0]] * 4},
        {"sources": [["rows", [-1], 0.0]] * 4},
        {"sources": [["columns", [0], 0.0]] * 4},
        {"sources": [["scale", [0], 0.0]] * 4},
        {"sources": [["rows", [0], float("nan")]] * 4},
        {"sources": [["rows", [0], True]] * 4},
        {"results": []},
        {"results": [[[1], "rows"]]},
        {"results": [[[256], "channels"]]},
        {"results": [[[2, 8, 4, 4]]]},
        {"results": [[[2, 8, 4, 4], "columns"]]},
        {"constants": [99]},
        {"constants": [1.0]},
        {"steps": [[]]},
        {"steps": []},
        {"outputs": []},
        {"outputs": [0]},
        {"outputs": [6, 6]},
        {"outputs": [7]},
        {"count": 1},
    ],
)
def test_other_texts_are_rejected(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="region"):
        parse_run(changed(**values))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 15_000, "x" * 30_000, '{"operation": 1}'])
def test_what_is_no_region_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="region"):
        parse_run(text)


def test_only_the_canonical_form_is_read() -> None:
    with pytest.raises(UsageError, match="canonical"):
        parse_run(json.dumps(json.loads(run_of(specs()[0]).text), sort_keys=True))
