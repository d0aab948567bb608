"""The comparison of a package with eager torch in float64: it passes rounding, and finds what is wrong."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from dispatch_profiler.boo.model_export.checking import difference
from dispatch_profiler.boo.model_export.package_files import package_files


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"y": 2 * x.cumsum(0), "n": 3, "positive": x > 0, "none": None}


X = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(0)), torch.tensor([math.inf])])


def changed(**results: Any) -> Any:
    """A package that returns other results than the model."""
    return lambda x: {**Doubling()(x), **results}


EXPECTED = Doubling()(X)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, ""),
        ({"n": torch.tensor(3)}, ""),
        ({"y": EXPECTED["y"] * (1 + 1e-6)}, ""),
        ({"y": EXPECTED["y"] * (1 + 1e-3)}, "an error of .*, where eager torch has"),
        ({"y": EXPECTED["y"].roll(1)}, "a result is infinite or NaN elsewhere"),
        ({"y": torch.full_like(EXPECTED["y"], math.nan)}, "a result is infinite or NaN elsewhere"),
        ({"y": EXPECTED["y"][:1]}, r"a result is torch.float32 \(1,\), not torch.float32 \(1001,\)"),
        ({"y": EXPECTED["y"].double()}, "a result is torch.float64"),
        ({"positive": ~EXPECTED["positive"]}, "other whole numbers or truth values"),
        ({"more": X}, "5 results instead of 4"),
    ],
)
def test_only_rounding_passes(results: dict[str, Any], message: str):
    found = difference(changed(**results), Doubling(), ((X,), {}))
    assert bool(found) == bool(message)
    assert re.search(message, found)


def test_one_wrong_element_is_found():
    wrong = EXPECTED["y"].clone()
    wrong[500] += 1.0
    assert "an error of 1" in difference(changed(y=wrong), Doubling(), ((X,), {}))


def test_a_model_that_names_a_type_is_compared_with_itself():
    class Typed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32
            return x + 1

    assert difference(lambda x: x + 1, Typed(), ((X,), {})) == ""
    assert difference(lambda x: x + 2, Typed(), ((X,), {}))


def test_the_example_has_the_inputs_and_the_readme_the_kernels(shared_cache: None):
    image = torch.zeros(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    files = package_files(
        [image, torch.zeros(5, dtype=torch.int64)],
        [("matmul_x", "tiles")] * 2,
        [("softmax", "torch is faster")],
    )
    example, readme = files["example.cpp"].decode(), files["README.txt"].decode()

    assert "at::empty_strided({1, 3, 4, 4}, {48, 1, 12, 3}, at::kFloat).fill_(1)" in example
    assert "at::empty_strided({5}, {1}, at::kLong).fill_(1)" in example
    assert readme.count("matmul_x: tiles") == 1 and "softmax: torch is faster" in readme
    assert len(example.splitlines()) <= 40 and len(files["CMakeLists.txt"].splitlines()) <= 10
    assert "was faster" in package_files([image], [], [])["README.txt"].decode()
