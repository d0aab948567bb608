"""What derives from weights: computed again after every change, unless the weights are frozen."""

from __future__ import annotations

import copy
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from dispatch_profiler.boo import refreeze  # noqa: E402
from dispatch_profiler.boo.weights import snapshots  # noqa: E402
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, Snapshots  # noqa: E402
from dispatch_profiler.errors import UsageError  # noqa: E402


class Doubled:
    """Derives twice a weight from its snapshot, and counts how often it computes it."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.snapshots, self.frozen, self.count = Snapshots(), frozen, 0
        #: The snapshots that were found.
        self.taken: list[Any] = []

    def __call__(self, weight: Any, name: object = "doubled") -> Any:
        snapshot = self.snapshots.of(weight, frozen=self.frozen)
        if snapshot is None:
            return self._make(weight)
        self.taken.append(weakref.ref(snapshot))
        source = weight if snapshot.tensor is None else snapshot.tensor
        return snapshot.value(name, (), lambda: self._make(source))

    def _make(self, source: Any) -> Any:
        self.count += 1
        return 2 * source.detach()


@pytest.fixture
def doubled() -> Doubled:
    return Doubled()


@pytest.fixture
def frozen() -> Doubled:
    return Doubled(frozen=True)


def weight(*shape: int) -> Any:
    return torch.nn.Parameter(torch.randn(*(shape or (40, 30))))


@pytest.fixture
def w() -> Any:
    return weight()


# -- compared weights -------------------------------------------------------------------------------


def test_a_value_is_computed_once(w: Any, doubled: Doubled):
    first, second = doubled(w), doubled(w)
    assert first is second
    assert doubled.count == 1
    assert torch.equal(first, 2 * w)


def write(w: Any) -> None:
    with torch.no_grad():
        w.mul_(3)


def step(optimizer: Any, w: Any, **options: Any) -> None:
    w.grad = torch.zeros_like(w)
    w.grad[3, 4] = 1
    optimizer([w], lr=0.5, **options).step()


def write_one_element_to_data(w: Any) -> None:
    w.data[7, 7] += 1


def write_to_an_array(w: Any) -> None:
    w.detach().numpy()[3, 1:3] = 5


def write_through_dlpack(w: Any) -> None:
    np.from_dlpack(w.detach())
    torch.from_dlpack(w.detach())[1, 2] = 9


def load_a_state(w: Any) -> None:
    module = torch.nn.Module()
    module.w = w
    module.load_state_dict({"w": torch.randn_like(w)})


def swap_data(w: Any) -> None:
    w.data = torch.randn_like(w)


def set_(w: Any) -> None:
    with torch.no_grad():
        w.set_(torch.randn_like(w))


def resize_the_storage(w: Any) -> None:
    values = torch.randn_like(w)
    w.untyped_storage().resize_(0)
    w.untyped_storage().resize_(values.nbytes)
    w.data.copy_(values)


def swap_tensors(w: Any) -> None:
    torch.utils.swap_tensors(w, torch.nn.Parameter(torch.randn_like(w)))


CHANGES: dict[str, Callable[[Any], None]] = {
    each.__name__: each
    for each in (
        write,
        write_one_element_to_data,
        write_to_an_array,
        write_through_dlpack,
        load_a_state,
        swap_data,
        set_,
        resize_the_storage,
        swap_tensors,
    )
}
CHANGES |= {
    f"{optimizer.__name__}, {options}": lambda w, optimizer=optimizer, options=options: step(
        optimizer, w, **options
    )
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad)
    for options in ({}, {"fused": True})
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_weight_is_noticed(w: Any, change: Callable[[Any], None], doubled: Doubled):
    doubled(w)

    change(w)

    assert torch.equal(doubled(w), 2 * w)
    doubled(w)
    assert doubled.count == 2


def test_data_that_is_swapped_back_and_forth_is_never_taken_for_another(w: Any, doubled: Doubled):
    """The memory of freed tensors is used again, at the same addresses."""
    for _ in range(50):
        w.data = torch.randn_like(w)
        assert torch.equal(doubled(w), 2 * w)
    assert len(doubled.snapshots) <= 1


def test_views_of_one_storage_are_told_apart(doubled: Doubled):
    base = torch.arange(24.0)
    views = [
        base[:12],
        base[12:],
        base[:12].view(3, 4),
        base[:12].view(3, 4).t(),
        base[:12].view(torch.int32),
    ]
    for view in views * 2:
        assert torch.equal(doubled(view), 2 * view)
    assert doubled.count == len(views)


def test_other_tensors_at_the_same_place_share_a_value(w: Any, doubled: Doubled):
    """Autograd and torch.compile pass other tensor objects with the memory of a parameter."""
    assert doubled(w) is doubled(w.detach()) is doubled(w.view_as(w))


def test_tensors_of_inference_mode_are_compared_too(doubled: Doubled):
    with torch.inference_mode():
        w = torch.randn(4, 3)
        assert doubled(w) is doubled(w)
        w.mul_(3)
        assert torch.equal(doubled(w), 2 * w)


def test_a_value_can_be_saved_for_a_backward_pass(w: Any, doubled: Doubled):
    with torch.inference_mode():
        value = doubled(w)
    x = torch.randn(30, requires_grad=True)
    (value @ x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * w.detach().sum(0), rtol=1e-4, atol=1e-4)


def test_a_value_vanishes_with_its_weight(doubled: Doubled, frozen: Doubled):
    w = weight()
    values = [weakref.ref(each(w)) for each in (doubled, frozen)]
    del w
    gc.collect()
    assert [each() for each in values] == [None, None]
    assert len(doubled.snapshots) == len(frozen.snapshots) == 0


def test_a_weight_that_changes_in_each_call_gets_no_snapshots_for_a_while(w: Any, doubled: Doubled):
    taken = 0
    for _ in range(200):
        write_one_element_to_data(w)
        before = len(doubled.taken)
        assert torch.equal(doubled(w), 2 * w)
        taken += len(doubled.taken) - before
    assert taken < 100
    for _ in range(100):
        last = doubled(w)
    assert doubled(w) is last, "it is compared again once it stays as it is"


def test_modes_and_tensors_without_memory_leave_nothing(w: Any, doubled: Doubled):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        doubled(mode.from_tensor(w))
    sparse, batch = torch.eye(3).to_sparse(), torch.randn(5, 3)
    assert torch.equal(doubled(sparse).to_dense(), 2 * torch.eye(3))
    assert torch.equal(torch.vmap(doubled)(batch), 2 * batch)
    assert doubled(torch.empty(3, device="meta")).is_meta
    assert len(doubled.snapshots) == 0


def test_an_exception_leaves_nothing():
    snapshot = Snapshots().of(weight())
    assert snapshot is not None

    def fail() -> Any:
        raise ValueError("no value")

    for _ in range(2):
        with pytest.raises(ValueError, match="no value"):
            snapshot.value("failing", (), fail)
    assert torch.is_grad_enabled()


def test_values_of_several_weights_belong_to_all_of_their_snapshots():
    of, a, b = Snapshots().of, weight(), weight()
    first, second = of(a), of(b)
    assert first is not None
    value = first.value("sum", (second,), lambda: first.tensor + second.tensor)
    assert first.value("sum", (second,), lambda: torch.zeros(3)) is value
    write(b)
    other, new = of(b), torch.ones(3)
    assert first.value("sum", (other,), lambda: new) is new


# -- frozen weights ---------------------------------------------------------------------------------


def test_a_frozen_weight_is_a_snapshot_until_refreeze(w: Any, frozen: Doubled):
    before = frozen(w)
    expected = before.clone()
    for change in (write, write_to_an_array, lambda w: step(torch.optim.SGD, w, fused=True)):
        change(w)
        assert frozen(w) is before
        assert torch.equal(before, expected)
    frozen.snapshots.refreeze()
    assert torch.equal(frozen(w), 2 * w)


def test_refreeze_takes_a_model_tensors_or_nothing(monkeypatch: pytest.MonkeyPatch):
    models = [torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)]
    tensors = [models[0].weight, models[0].running_mean, models[1].weight]

    def values() -> list[Any]:
        return [
            SNAPSHOTS.of(each, frozen=True).value("doubled", (), lambda each=each: 2 * each.detach())  # type: ignore[union-attr]
            for each in tensors
        ]

    def changed_by(argument: Any) -> list[bool]:
        before = values()
        refreeze(*argument)
        return [one is not other for one, other in zip(before, values(), strict=True)]

    assert changed_by([models[0]]) == [True, True, False]
    assert changed_by([[tensors[2].detach()]]) == [False, False, True]
    assert changed_by([tensors[1]]) == [False, True, False]
    assert changed_by([]) == [True, True, True]
    for wrong in (3, "model", [3]):
        with pytest.raises(UsageError, match=r"refreeze takes a torch.nn.Module, tensors or nothing"):
            refreeze(wrong)  # type: ignore[arg-type]


def test_refreeze_drops_what_a_parameter_held_before(frozen: Doubled):
    """An average of weights is evaluated, exchanged for the weights, and changed while these are in place."""
    parameter = torch.nn.Parameter(weight())
    trained, average = parameter.data, parameter.data.clone()
    parameter.data = average
    frozen(parameter)
    parameter.data = trained
    average.mul_(2)
    frozen.snapshots.refreeze([parameter])
    parameter.data = average
    assert torch.equal(frozen(parameter), 2 * average)


def test_frozen_weights_are_counted_and_limited(frozen: Doubled, caplog: pytest.LogCaptureFixture):
    weights = [weight() for _ in range(5)]
    size = weights[0].nbytes
    frozen.snapshots = Snapshots(most_bytes=2.5 * size)
    for _ in range(2):
        for each in weights:
            assert torch.equal(frozen(each), 2 * each)
    assert frozen.snapshots.frozen == (3, 3 * size)
    assert len(caplog.records) == 1
    assert "limit" in caplog.text
    del weights[0], each
    gc.collect()
    frozen.snapshots.refreeze()
    assert frozen.snapshots.frozen == (0, 0)
    frozen(weights[0])
    assert frozen.snapshots.frozen == (1, size)


def test_frozen_and_compared_weights_do_not_share_values(w: Any, doubled: Doubled, frozen: Doubled):
    frozen.snapshots = doubled.snapshots
    old = frozen(w)
    write(w)
    assert torch.equal(doubled(w), 2 * w)
    assert frozen(w) is old


def test_nothing_is_frozen_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch):
    """Its replays overwrite the memory of what it computes."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    place = snapshots.place_of(weight())
    assert place is not None
    monkeypatch.setattr(snapshots, "place_of", lambda tensor: place._replace(device=torch.device("cuda")))
    assert Snapshots().of(weight(), frozen=True) is None
    assert Snapshots().of(weight()) is None


# -- threads and processes --------------------------------------------------------------------------


@pytest.mark.parametrize("is_frozen", [False, True])
def test_threads_compute_a_value_once(is_frozen: bool):
    doubled = Doubled(frozen=is_frozen)
    weights, start = [weight(64, 64) for _ in range(20)], threading.Barrier(4)

    def run(_: int) -> list[Any]:
        start.wait()
        return [doubled(w) for w in weights]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, range(4)):
            assert all(torch.equal(value, 2 * w) for value, w in zip(found, weights, strict=True))
    assert doubled.count == len(weights)


def test_threads_that_write_and_read_never_see_an_older_weight(doubled: Doubled):
    w, wrong, stop = torch.nn.Parameter(torch.zeros(1000)), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            before = w[-1].item()
            if doubled(w)[0].item() < 2 * before:
                wrong.append(before)

    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(read) for _ in range(2)]
        for number in range(1, 300):
            w.detach().numpy()[:] = number
        stop.set()
    assert not wrong and not any(each.exception() for each in reads)
    assert torch.equal(doubled(w), 2 * w)


def test_a_process_that_is_forked_while_a_value_is_computed_computes_its_own():
    cache, w, running, done = Snapshots(), weight(), threading.Event(), threading.Event()

    def slow() -> Any:
        running.set()
        done.wait(60)
        return torch.zeros(3)

    snapshot = cache.of(w)
    assert snapshot is not None
    thread = threading.Thread(target=lambda: snapshot.value("slow", (), slow))
    thread.start()
    running.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        three = torch.full((2,), 3)
        os._exit(0 if cache.of(w).value("other", (), lambda: three) is three else 1)  # type: ignore[union-attr]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_copy_of_a_module_has_snapshots_of_its_own(w: Any, doubled: Doubled):
    doubled(w)
    other = copy.deepcopy(w)
    write(other)
    assert torch.equal(doubled(other), 2 * other)
    assert torch.equal(doubled(w), 2 * w)
    assert doubled.count == 2
