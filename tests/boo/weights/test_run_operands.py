"""Operands of a run that derive from weights: the same until a weight changes, and never outdated."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dispatch_profiler.boo.weights.derivations import (  # noqa: E402
    BatchNorm,
    Derivation,
    RunOperands,
    WeightChanges,
    WeightsNeeded,
    scales_and_shifts,
)
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS  # noqa: E402


def operands(*, frozen: bool = False, is_costly: bool = False) -> RunOperands:
    """Input 0, twice input 1, input 2 in one row, the sum of inputs 1 and 3, and their difference in two parts."""
    made = RunOperands()
    made.add(lambda given: given[0], (0,))
    made.derive(Derivation("doubled", (1,), lambda w: 2 * w[0], frozen, is_costly))
    made.derive(Derivation("row", (2,), lambda b: b[0].clone().reshape(-1), frozen))
    made.derive(Derivation("sum", (1, 3), lambda w: w[0] + w[1], frozen))
    made.derive(Derivation("parts", (3, 1), lambda w: tuple((w[0] - w[1]).chunk(2)), frozen), 2)
    return made


def inputs() -> list[Any]:
    return [torch.randn(2), *(torch.nn.Parameter(torch.randn(4, 4)) for _ in range(3))]


def check(found: Sequence[Any], given: list[Any]) -> None:
    x, w, b, m = (each.detach() for each in given)
    expected = (x, 2 * w, b.reshape(-1), w + m, *(m - w).chunk(2))
    for value, wanted in zip(found, expected, strict=True):
        assert torch.equal(value, wanted)


def test_the_same_weights_give_the_same_operands():
    made, given = operands(), inputs()
    first, state = made(given)
    check(first, given)
    given[0] = torch.randn(2)  # no weight

    found, again = made(given)
    check(found, given)
    assert all(one is other for one, other in zip(list(found)[1:], list(first)[1:], strict=True))
    assert again is state is not None


def write(w: Any) -> None:
    with torch.no_grad():
        w.mul_(3)


def swap_data(w: Any) -> None:
    w.data = torch.randn_like(w)


def transpose_data(w: Any) -> None:
    w.data = w.data.t()


def write_one_element_to_data(w: Any) -> None:
    w.data[1, 2] += 1


def move_the_storage(w: Any) -> None:
    values = torch.randn_like(w)
    w.untyped_storage().resize_(0)
    w.untyped_storage().resize_(values.nbytes)
    w.data.copy_(values)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
    [write, swap_data, transpose_data, write_one_element_to_data, move_the_storage],
    ids=lambda each: each.__name__,
)
def test_a_changed_weight_is_noticed(change: Callable[[Any], None], at: int):
    made, given = operands(), inputs()
    made(given)

    change(given[at])

    found, state = made(given)
    check(found, given)
    again, same = made(given)
    assert again[at] is found[at]
    assert same is state


def test_a_weight_that_is_replaced_is_noticed():
    """Its `id` and its memory may be those of the one that was freed."""
    made, given = operands(), inputs()
    for _ in range(50):
        given[1] = None
        given[1] = torch.nn.Parameter(torch.randn(4, 4))
        check(made(given)[0], given)


def test_layers_that_share_a_run_keep_their_operands_side_by_side():
    made, layers = operands(), [inputs() for _ in range(3)]
    first = [made(each) for each in layers]
    for (found, state), layer in zip(first, layers, strict=True):
        check(found, layer)
        assert made(layer)[1] is state


def test_nothing_is_kept_of_weights_that_are_gone():
    made, given = operands(), inputs()
    found = made(given)[0]
    values = [weakref.ref(each) for each in list(found)[1:4]]
    del found, given
    gc.collect()

    assert not any(each() is not None for each in values)


def test_weights_on_a_gpu_are_read_in_every_call(monkeypatch: pytest.MonkeyPatch):
    """A comparison would wait for the device."""
    monkeypatch.setattr(SNAPSHOTS, "of", lambda weight, frozen: None)
    made, given = operands(), inputs()
    for _ in range(3):
        found, state = made(given)
        check(found, given)
        assert state is None
        write(given[1])


def test_what_is_costly_is_not_computed_for_one_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SNAPSHOTS, "of", lambda weight, frozen: None)
    with pytest.raises(WeightChanges):
        operands(is_costly=True)(inputs())


def test_a_weight_that_changes_in_each_call_is_no_longer_worth_costly_operands():
    made, given = operands(is_costly=True), inputs()
    with pytest.raises(WeightChanges):
        for _ in range(10):
            check(made(given)[0], given)
            write_one_element_to_data(given[1])


def test_frozen_weights_are_the_same_until_refreeze():
    made, given = operands(frozen=True), inputs()
    before = [each.detach().clone() for each in given]
    _, state = made(given)
    for each in given[1:]:
        write(each)
    found, same = made(given)
    check(found, [given[0], *before[1:]])
    assert same is state

    SNAPSHOTS.refreeze([given[1]])

    x, w, b, m = before[0], given[1].detach(), before[2], before[3]
    found, other = made(given)
    assert other is not state
    assert torch.equal(found[1], 2 * w)
    assert torch.equal(found[2], b.reshape(-1))
    assert torch.equal(found[0], x)
    assert not torch.equal(found[3], w + m), "the snapshot of the other weight was kept"
    SNAPSHOTS.refreeze()
    check(made(given)[0], given)


def test_an_exception_leaves_nothing():
    def fail(_: Any) -> Any:
        raise ValueError("no value")

    given, made = inputs(), RunOperands()
    made.derive(Derivation("failing", (1,), fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="no value"):
            made(given)[0]


# -- batch norms ------------------------------------------------------------------------------------


def batch_norms(device: str, dtype: Any) -> list[BatchNorm]:
    generator = torch.Generator().manual_seed(0)

    def vector(count: int) -> Any:
        return torch.randn(count, generator=generator).to(device, dtype)

    every = []
    for count in (1, 3, 64, 65, 200):
        for weight, bias in ((True, True), (False, True), (True, False), (False, False)):
            for mean in (None, vector(count)):
                w, b = vector(count) if weight else None, vector(count) if bias else None
                every.append(BatchNorm(w, vector(count).abs(), b, mean, 1e-5 if count < 65 else 1e-3))
    return every


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("of_device", [{"cpu"}, set()], ids=["one by one", "at once"])
def test_scales_and_shifts_are_those_of_the_definition(of_device: set[str], dtype: Any):
    """Also where all are computed at once, as on a GPU."""
    norms = batch_norms("cpu", dtype)
    found = scales_and_shifts(norms, of_device)
    assert all(vector.data_ptr() % 64 == 0 for vector in found)
    for norm, vector in zip(norms, found, strict=True):
        scale = (1 if norm.weight is None else norm.weight.double()) / (
            norm.variance.double() + norm.eps
        ).sqrt()
        bias = 0 if norm.bias is None else norm.bias.double()
        expected = scale if norm.mean is None else bias - norm.mean.double() * scale
        torch.testing.assert_close(vector, expected.to(dtype))


def test_weights_that_are_frozen_may_be_left_out_until_refreeze():
    made, given = operands(frozen=True), inputs()
    without = [torch.randn(2), None, None, None]
    with pytest.raises(WeightsNeeded):
        made(without)
    found, state = made(given)
    for again, new_state in (made(without), made(without)):
        assert torch.equal(again[0], without[0])
        assert all(one is other for one, other in zip(list(again)[1:], list(found)[1:], strict=True))
        assert new_state is state
    SNAPSHOTS.refreeze(given[2:3])
    with pytest.raises(WeightsNeeded):
        made(without)
    check(made(given)[0], given)


def test_weights_that_are_not_frozen_are_needed_in_each_call():
    made, given = operands(), inputs()
    made(given)
    with pytest.raises(WeightsNeeded):
        made([given[0], None, None, None])


def test_an_operand_that_is_read_in_each_call_is_needed():
    made, given = operands(frozen=True), inputs()
    made.add(lambda given: given[2], (2,))
    made(given)
    with pytest.raises(WeightsNeeded):
        made([given[0], None, None, None])
