"""Results that share memory in eager torch do so in compiled models: with each other, with inputs, with parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import dispatch_profiler.boo.fusion.match.glue as glue_module
import dispatch_profiler.boo.fusion.plan.rewriting as rewriting_module
from dispatch_profiler.boo.backends import backend

#: Of torch's own modules, when inductor is imported.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    # Dynamo's own, for an input of a graph behind a break that has a gradient function.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # Inductor's own, for complex numbers.
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
#: What is returned: of `y`, which two regions and a program compute, the input `x` and the weight `w`.
KINDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "slice": lambda y, x, w: (y, y[:, :4]),
    "two slices": lambda y, x, w: (y[:, 4:], y[:, 2:6]),
    "reshape": lambda y, x, w: (y, y.reshape(2, -1)),
    "view of a view": lambda y, x, w: (y, y.flatten(2).transpose(1, 2)[:, ::2]),
    "transpose": lambda y, x, w: [y, {"transposed": y.transpose(1, 3)}],
    "permute": lambda y, x, w: (y.permute(0, 2, 3, 1), y),
    "select": lambda y, x, w: (y[0], y[1], y),
    "chunk": lambda y, x, w: (y, *y.chunk(2, 1)),
    "chunks alone": lambda y, x, w: y.chunk(4, 1),
    "split": lambda y, x, w: y.split([2, 5, 1], 1),
    "unbind": lambda y, x, w: (*y.unbind(0), y),
    "expand": lambda y, x, w: (y, y[:, :1].expand(2, 8, 8, 8)),
    "squeeze": lambda y, x, w: (y[:1].squeeze(), y.unsqueeze(1)),
    "detach": lambda y, x, w: (y, y.detach()),
    "as_strided": lambda y, x, w: (y, y.as_strided((4, 3), (3, 1), 5)),
    "diagonal": lambda y, x, w: (y.diagonal(0, 2, 3), y),
    "real": lambda y, x, w: (lambda z: (z, z.real, z.imag))(torch.complex(y, y)),
    "twice the same": lambda y, x, w: (y, [y, y]),
    "an input": lambda y, x, w: (y, x, x[0], x.detach()),
    "a parameter": lambda y, x, w: (y, w, w[:1], w.detach().flatten()),
    "changed in place": lambda y, x, w: (y.relu_(), y),
    "a changed part": lambda y, x, w: (y[:, :4].mul_(2), y),
    "a reduction": lambda y, x, w: (lambda z: (z, z.flatten(1), z.squeeze(-1)))(y.mean((2, 3), keepdim=True)),
    "a view that changes nothing": lambda y, x, w: (lambda z: (z, z.movedim(0, 0), z[...]))(y.softmax(1)),
    "behind a region": lambda y, x, w: (y.softmax(1), y.transpose(1, 2)),
}


class Net(nn.Module):
    """Two convolutions with what becomes a program between them, and results of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.kind = kind

    def forward(self, x: Any) -> Any:
        y = self.second(nn.functional.max_pool2d(self.first(x), 3, 1, 1))
        return KINDS[self.kind](y, x, self.first.weight)


def relations(results: Any, model: Net, x: torch.Tensor) -> list[Any]:
    """For each pair of tensors that share memory, the distance of their first elements; and shapes and strides."""
    tensors = [*tree_leaves(results), x, *model.parameters()]
    shared = [
        (at, other, second.data_ptr() - first.data_ptr(), first is second)
        for at, first in enumerate(tensors)
        for other, second in enumerate(tensors[at + 1 :], at + 1)
        if first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    ]
    return [*shared, *((each.shape, each.stride(), each.storage_offset()) for each in tensors)]


def check(kind: str, mode: str, with_: Any) -> None:
    """Compare with eager torch: two calls, and the results of the first one after the second."""
    model, x = Net(kind).eval(), torch.randn(2, 3, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=with_, dynamic=False)
    with MODES[mode]():
        found, expected = [(each(x), each(x)) for each in (compiled, model)]
    for one, other in zip(found, expected, strict=True):
        assert relations(one, model, x) == relations(other, model, x)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def modes_of_kinds() -> Iterator[Any]:
    """Every kind in every mode; the quick suite has each kind in one mode, and each mode with a third of the kinds."""
    for at, kind in enumerate(KINDS):
        for number, mode in enumerate(MODES):
            yield pytest.param(kind, mode, marks=() if number == at % len(MODES) else pytest.mark.slow)


@pytest.mark.some(4)
@pytest.mark.parametrize(("kind", "mode"), [*modes_of_kinds()])
def test_results_share_memory_as_in_eager_torch(kind: str, mode: str, launched: list[str]) -> None:
    check(kind, mode, backend(strict=True))
    assert launched


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["slice", "detach", "a parameter"])
def test_the_same_once_the_graph_is_known(kind: str) -> None:
    for _ in range(2):
        check(kind, "no_grad", backend(strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        pytest.param("chunk", "grad", marks=pytest.mark.slow),
        ("chunk", "no_grad"),
        ("a view that changes nothing", "no_grad"),
    ],
)
def test_results_of_inductor_share_memory(kind: str, mode: str, launched: list[str]) -> None:
    check(kind, mode, backend("inductor", strict=True))
    assert launched


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_inductor_share_memory_in_every_kind(kind: str, mode: str) -> None:
    check(kind, mode, backend("inductor", strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("with_", [backend(), pytest.param(backend("inductor"), marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["no_grad", "grad"])
def test_a_write_behind_a_graph_break_reaches_what_it_is_a_view_of(mode: str, with_: Any) -> None:
    convolution = nn.Conv2d(3, 8, 3, padding=1)

    def detect(x: Any) -> Any:
        y = convolution(x).relu()
        boxes = y[:, :4]
        torch._dynamo.graph_break()
        boxes.sigmoid_()
        return y

    x = torch.randn(2, 3, 8, 8)
    with MODES[mode]():
        found = torch.compile(detect, backend=with_, dynamic=False)(x)
        torch.testing.assert_close(found, detect(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("with_", [backend(strict=True), backend("inductor", strict=True)])
def test_a_result_of_part_of_the_memory_keeps_its_place(with_: Any, launched: list[str]) -> None:
    convolution, x = nn.Conv2d(3, 8, 3, padding=1), torch.randn(2, 3, 8, 8)

    def part(x: Any) -> Any:
        return convolution(x)[:, 4:]

    with torch.no_grad():
        found, expected = torch.compile(part, backend=with_, dynamic=False)(x), part(x)
    assert (found.storage_offset(), found.stride()) == (expected.storage_offset(), expected.stride())
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert launched


@pytest.mark.slow
def test_views_of_what_inductor_computes_share_its_memory(launched: list[str]) -> None:
    """Inductor alone would compute each of them apart."""
    convolution = nn.Conv2d(3, 8, 3, padding=1)

    def parts(x: Any) -> Any:
        first, second = convolution(x).log_softmax(-1).split(4, 1)
        second[..., ::2] = 0.5
        rows = second.unbind(1)
        return second, first, rows[1], second, rows[0].sum()

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        found = torch.compile(parts, backend=backend("inductor", strict=True), dynamic=False)(x)
        expected = parts(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    places = [(each.storage_offset(), each.stride()) for each in expected]
    assert [(each.storage_offset(), each.stride()) for each in found] == places
    assert found[0] is found[3]
    found[0].zero_()
    assert not found[2].any()
    assert found[1].all()
    assert launched


def test_what_is_computed_as_copies_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail."""
    for module in (rewriting_module, glue_module):
        monkeypatch.setattr(module, "shared_memory", lambda graph: [])
    with pytest.raises(AssertionError):
        check("slice", "no_grad", backend())
