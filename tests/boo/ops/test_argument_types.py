"""Arguments of other types: `boo_conv` and `boo_layer_norm` take and reject what torch's functions do, with its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from dispatch_profiler.boo.ops import boo_conv, boo_layer_norm  # noqa: E402


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> None:
    """Kernels are compiled once."""


#: Functions, because some can be read once only.
VALUES: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in (
        1, 2, 0, -1, True, 1.0, None, "same", "valid", "SAME", b"1", 1j, 2**70, float("nan"), range(1, 3), {1}, {1: 2},
        (1,), [1], (1, 2), [1, 1], (1, 2, 3), (), (True, True), (1.0, 1.0), [1.0, 1], [True, True], (2**70, 1), [1, None],
        torch.Size([1, 1]), np.int64(2), np.float32(1), (np.int64(1), 2),
    )),
    lambda: torch.tensor(1),
    lambda: torch.tensor([1, 2]),
    lambda: torch.tensor(2.0),
    lambda: (torch.tensor(1), 2),
    lambda: np.array([1, 1]),
    lambda: iter([1, 1]),
    object,
]  # fmt: skip
X, W, B = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3), torch.randn(3)


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except Exception as error:
        return type(error)


def check_same(found: Any, expected: Any, what: object) -> None:
    if isinstance(expected, type):
        assert found is expected, what
    else:
        assert not isinstance(found, type), (what, found)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert found.stride() == expected.stride()


# A dilation is read as a stride is.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("stride", "padding", pytest.param("dilation", marks=pytest.mark.slow)),
        *("groups", "bias", "weight", "input"),
    ],
)
def test_a_convolution_takes_what_torchs_does(name: str) -> None:
    """After a usual call: that 1, 1.0 and True are equal does not matter."""
    boo_conv(X, W, B, (1, 1), (1, 1), (1, 1))
    for value in VALUES:
        given = [{"input": X, "weight": W, "bias": B, name: value()} for _ in range(2)]
        found, expected = outcome(boo_conv, given[0]), outcome(functional.conv2d, given[1])
        check_same(found, expected, (name, value()))


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["normalized_shape", "weight", "bias", "eps", "input"])
def test_a_layer_norm_takes_what_torchs_does(name: str) -> None:
    y, ones = torch.randn(4, 8), torch.ones(8)
    own: list[Callable[[], Any]] = [
        *(lambda value=value: value for value in (
            8, (8,), [8], (8.0,), (True,), torch.Size([8]), (np.int64(8),), np.int64(8), 1e-3, 0.0, -1.0, float("inf"),
            np.float32(1e-3),
        )),
        lambda: torch.tensor([8]),
        lambda: torch.tensor(1e-3),
        lambda: np.array([8]),
        lambda: iter([8]),
        lambda: torch.ones(8, 1),
        lambda: torch.ones(8).double(),
    ]  # fmt: skip
    usual = {"input": y, "normalized_shape": (8,), "weight": ones, "bias": ones, "eps": 1e-5}
    for value in [*VALUES, *own]:
        given = [{**usual, name: value()} for _ in range(2)]
        found, expected = outcome(boo_layer_norm, given[0]), outcome(functional.layer_norm, given[1])
        check_same(found, expected, (name, value()))
