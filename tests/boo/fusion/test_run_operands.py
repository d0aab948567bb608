"""Operands of a run that derive from parameters: the same until a parameter changes, and never outdated."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dispatch_profiler.boo.fusion.parameters import Derived, Operands  # noqa: E402
from dispatch_profiler.boo.ops import derived  # noqa: E402
from dispatch_profiler.boo.ops.derived import VALUES  # noqa: E402


def operands() -> Operands:
    """Input 0, twice input 1, input 2 in one row, and the sum of inputs 1 and 3."""
    made = Operands()
    doubled = Derived("doubled", lambda w: 2 * w)
    added = Derived("sum", lambda w, m: w + m)
    made.add(lambda given: given[0])
    made.add(lambda given: doubled((given[1],)), [1])
    made.add(lambda given: given[2].reshape(-1), [2])
    made.add(lambda given: added((given[1], given[3])), [1, 3])
    return made


def inputs() -> list[Any]:
    return [torch.randn(2), *(torch.nn.Parameter(torch.randn(4, 4)) for _ in range(3))]


def check(found: list[Any], given: list[Any]) -> None:
    x, w, b, m = (each.detach() for each in given)
    for value, wanted in zip(found, (x, 2 * w, b.reshape(-1), w + m), strict=True):
        assert torch.equal(value, wanted)


def test_the_same_parameters_give_the_same_operands():
    made, given = operands(), inputs()
    first = made(given)[0]
    check(first, given)
    given[0] = torch.randn(2)  # no parameter

    found = made(given)[0]
    check(found, given)
    assert all(one is other for one, other in zip(found[1:], first[1:], strict=True))


def write(w: Any) -> None:
    with torch.no_grad():
        w.mul_(3)


def swap_data(w: Any) -> None:
    w.data = torch.randn_like(w)


def transpose_data(w: Any) -> None:
    w.data = w.data.t()


def write_to_data(w: Any) -> None:
    w.data.mul_(3)


def move_the_storage(w: Any) -> None:
    values = torch.randn_like(w)
    w.untyped_storage().resize_(0)
    w.untyped_storage().resize_(values.nbytes)
    w.data.copy_(values)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
    [write, swap_data, transpose_data, write_to_data, move_the_storage],
    ids=lambda each: each.__name__,
)
def test_a_changed_parameter_is_noticed(change: Callable[[Any], None], at: int):
    made, given = operands(), inputs()
    made(given)[0]

    change(given[at])

    found = made(given)[0]
    check(found, given)
    assert made(given)[0][at] is found[at]


def test_a_parameter_that_is_replaced_is_noticed():
    """Its `id` and its memory may be those of the one that was freed."""
    made, given = operands(), inputs()
    for _ in range(50):
        given[1] = None
        given[1] = torch.nn.Parameter(torch.randn(4, 4))
        check(made(given)[0], given)


def test_a_parameter_that_cannot_be_viewed_is_copied_and_its_changes_are_noticed():
    made, given = operands(), inputs()
    given[2] = torch.nn.Parameter(torch.randn(4, 4).t())
    first = made(given)[0]
    check(first, given)
    assert made(given)[0][2] is first[2]

    given[2].data.mul_(3)

    check(made(given)[0], given)


def test_nothing_is_kept_of_parameters_that_are_gone():
    made, given = operands(), inputs()
    found = made(given)[0]
    values = [weakref.ref(each) for each in found[1:]]
    del found, given
    gc.collect()

    assert not any(each() is not None for each in values)


def test_inference_tensors_are_read_in_every_call():
    made = operands()
    with torch.inference_mode():
        given = [torch.randn(4, 4) for _ in range(4)]
        for _ in range(3):
            check(made(given)[0], given)
            given[1].mul_(3)


def test_a_cuda_graph_computes_operands_itself_and_leaves_none(monkeypatch: pytest.MonkeyPatch):
    made, given = operands(), inputs()
    monkeypatch.setattr(derived, "_on_gpu", lambda tensors: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    captured, state = made(given)
    check(captured, given)
    assert state is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kept = made(given)[0]
    assert not {id(each) for each in captured[1:]} & {id(each) for each in kept[1:]}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    again = made(given)[0]
    check(again, given)
    assert not {id(each) for each in again[1:]} & {id(each) for each in kept[1:]}


def test_forget_is_obeyed():
    """A write to one element between the sampled words is not noticed until then."""
    made, given = operands(), inputs()
    given[1], given[3] = (torch.nn.Parameter(torch.randn(100, 100)) for _ in range(2))
    made(given)[0]
    given[1].data[7, 7] += 1

    VALUES.forget(given[1])

    check(made(given)[0], given)


def test_an_exception_leaves_nothing():
    def fail(_: Any) -> Any:
        raise ValueError("no value")

    given, made = inputs(), Operands()
    made.add(fail, [1])
    for _ in range(2):
        with pytest.raises(ValueError, match="no value"):
            made(given)[0]
