"""Values derived from parameters: computed once for each version, dropped with their sources, and never outdated."""

from __future__ import annotations

import copy
import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dispatch_profiler.boo.ops import derived  # noqa: E402
from dispatch_profiler.boo.ops.derived import DerivedValues  # noqa: E402
from dispatch_profiler.boo.ops.weights import WeightValues  # noqa: E402


class Doubled:
    """Derives twice a tensor, and counts how often it computes it."""

    def __init__(self, cache: DerivedValues) -> None:
        self.cache = cache
        self.count = 0

    def __call__(self, *sources: Any, name: object = "doubled") -> Any:
        def make() -> Any:
            self.count += 1
            return 2 * functools.reduce(torch.add, sources)

        return self.cache.derive(name, sources, make)


@pytest.fixture
def doubled() -> Doubled:
    return Doubled(DerivedValues())


def weight(*shape: int) -> Any:
    return torch.nn.Parameter(torch.randn(*(shape or (4, 3))))


# -- once for each version --------------------------------------------------------------------------


def test_a_value_is_computed_once(doubled: Doubled):
    w = weight()

    first, second = doubled(w), doubled(w)

    assert first is second
    assert doubled.count == 1
    assert torch.equal(first, 2 * w)
    assert not first.requires_grad


def write(w: Any) -> None:
    with torch.no_grad():
        w.mul_(3)


def optimize(w: Any) -> None:
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=0.5).step()


def write_to_a_view(w: Any) -> None:
    with torch.no_grad():
        w.view(-1)[5:6].fill_(7)


def load_a_state(w: Any) -> None:
    module = torch.nn.Module()
    module.w = w
    module.load_state_dict({"w": torch.randn_like(w)})


def swap_data(w: Any) -> None:
    w.data = torch.randn_like(w)


def write_to_data(w: Any) -> None:
    w.data.mul_(3)


def write_to_an_array(w: Any) -> None:
    w.detach().numpy()[...] = 5


def resize_the_storage(w: Any) -> None:
    values = torch.randn_like(w)
    w.untyped_storage().resize_(0)
    w.untyped_storage().resize_(values.nbytes)
    w.data.copy_(values)


@pytest.mark.parametrize(
    "change",
    [
        write,
        optimize,
        write_to_a_view,
        load_a_state,
        swap_data,
        write_to_data,
        write_to_an_array,
        resize_the_storage,
    ],
    ids=lambda each: each.__name__,
)
def test_a_changed_source_is_noticed(change: Callable[[Any], None], doubled: Doubled):
    w = weight()
    doubled(w)

    change(w)

    assert torch.equal(doubled(w), 2 * w)
    assert doubled.count == 2
    doubled(w)
    assert doubled.count == 2


def test_data_that_is_swapped_back_and_forth_is_never_taken_for_another(doubled: Doubled):
    """The memory of freed tensors is used again, at the same addresses."""
    w = weight()
    for _ in range(50):
        w.data = torch.randn_like(w)
        assert torch.equal(doubled(w), 2 * w)
    assert len(doubled.cache) == 1


def test_any_source_counts(doubled: Doubled):
    a, b = weight(), weight()
    doubled(a, b)

    write(b)

    assert torch.equal(doubled(a, b), 2 * (a + b))
    assert torch.equal(doubled(b, b), 4 * b)
    assert doubled.count == 3


def test_views_of_one_storage_are_told_apart(doubled: Doubled):
    base = torch.arange(24.0)
    views = [
        base[:12],
        base[12:],
        base[:12].view(3, 4),
        base[:12].view(4, 3),
        base[:12].view(4, 3).t(),
        base[::2],
    ]
    views += [base[:12].view(torch.int32), torch._neg_view(base[:12])]

    for view in views * 2:
        assert torch.equal(doubled(view), 2 * view)

    assert doubled.count == len(views)


def test_names_are_told_apart(doubled: Doubled):
    w = weight()
    doubled(w, name=("scale", 1e-5))
    doubled(w, name=("scale", 1e-3))
    doubled(w, name=("scale", 1e-5))

    assert doubled.count == 2


def test_views_of_the_same_elements_share_a_value(doubled: Doubled):
    """Autograd and torch.compile pass other tensor objects with the memory of a parameter."""
    w = weight()
    assert doubled(w) is doubled(w.detach()) is doubled(w.view_as(w))

    write(w)

    assert torch.equal(doubled(w.detach()), 2 * w)


def test_copies_have_values_of_their_own(doubled: Doubled):
    w = weight()
    doubled(w)
    other = copy.deepcopy(w)
    write(other)

    assert torch.equal(doubled(other), 2 * other)
    assert torch.equal(doubled(w), 2 * w)
    assert doubled.count == 2


# -- nothing is kept alive --------------------------------------------------------------------------


def test_a_value_vanishes_with_its_source(doubled: Doubled):
    w, other = weight(), weight()
    value = weakref.ref(doubled(w, other))
    assert len(doubled.cache) == 1

    del w
    gc.collect()

    assert len(doubled.cache) == 0
    assert value() is None
    assert torch.equal(doubled(other), 2 * other)


def test_a_value_lives_as_long_as_the_memory_of_its_source(doubled: Doubled):
    w = weight()
    doubled(w)
    alias = w.detach()
    del w
    gc.collect()

    assert torch.equal(doubled(alias), 2 * alias)
    assert doubled.count == 1


def test_a_view_of_its_source_is_not_kept():
    """It would keep the source alive, and is cheap."""
    cache, w = DerivedValues(), weight()
    view = cache.derive("transposed", [w], lambda: w.t())
    pair = cache.derive("pair", [w], lambda: (torch.ones(1), w.t()))

    assert view.data_ptr() == pair[1].data_ptr() == w.data_ptr()
    assert len(cache) == 0


def test_each_version_replaces_the_one_before(doubled: Doubled):
    w = weight()
    for _ in range(5):
        write(w)
        doubled(w)

    assert (doubled.count, len(doubled.cache)) == (5, 1)


def test_forget_drops_what_derives_from_some_tensors_or_from_all(doubled: Doubled):
    a, b = weight(), weight()
    for sources in ([a], [b], [a, b]):
        doubled(*sources)

    doubled.cache.forget(a)
    assert len(doubled.cache) == 1
    doubled.cache.forget()
    assert len(doubled.cache) == 0


# -- modes ------------------------------------------------------------------------------------------


def test_values_of_inference_tensors_are_computed_in_every_call_unless_pinned(doubled: Doubled):
    with torch.inference_mode():
        w = torch.randn(4, 3)
        doubled(w)
        w.mul_(3)
        assert torch.equal(doubled(w), 2 * w)
        assert (doubled.count, len(doubled.cache)) == (2, 0)

        doubled.cache.pin(w)
        assert doubled(w) is doubled(w)
        assert doubled.count == 3

        doubled.cache.unpin(w)
        doubled(w)
        assert doubled.count == 4


def test_a_pin_ends_with_the_memory():
    cache = DerivedValues()
    with torch.inference_mode():
        cache.pin(torch.randn(4, 3))

    assert not cache._pinned


def test_what_is_computed_in_inference_mode_serves_training(doubled: Doubled):
    w = weight()
    with torch.inference_mode():
        value = doubled(w)
    x = torch.randn(3, requires_grad=True)

    (value @ x).sum().backward()  # saves `value`

    assert doubled(w) is value
    assert torch.allclose(x.grad, 2 * w.sum(0))


def test_fake_and_meta_tensors_and_modes_leave_nothing(doubled: Doubled):
    from torch._subclasses.fake_tensor import FakeTensorMode

    w = weight()
    with FakeTensorMode() as mode:
        doubled(mode.from_tensor(w))
    assert len(doubled.cache) == 0
    assert doubled(torch.empty(3, device="meta")).is_meta
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(doubled(sparse).to_dense(), 2 * torch.eye(3))
    batch = torch.randn(5, 3)
    assert torch.equal(torch.vmap(doubled)(batch), 2 * batch)
    assert torch.equal(doubled(w), 2 * w)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether a CUDA graph is captured, for tensors that are on the CPU."""
    monkeypatch.setattr(derived, "_on_gpu", lambda tensors: True)

    def says(is_capturing: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)

    says(False)
    return says


def test_a_cuda_graph_computes_values_itself_and_keeps_none(
    doubled: Doubled, captures: Callable[[bool], None]
):
    """Its replays see what the sources then hold, and its memory is no place for values of later calls."""
    w, new = weight(), weight()
    before = doubled(w)
    captures(True)
    for source in (w, new):
        assert doubled(source) is not before
        assert torch.equal(doubled(source), 2 * source)
    captures(False)
    assert doubled.count == 5
    assert doubled(w) is before
    assert len(doubled.cache) == 1


def test_what_is_found_without_a_search_is_not_used_in_a_cuda_graph(captures: Callable[[bool], None]):
    w, made = weight(), list[Any]()

    def double(source: Any) -> Any:
        made.append(2 * source)
        return made[-1]

    values = WeightValues("doubled in a graph", double)
    captures(True)
    first = values(w)
    captures(False)
    kept = values(w)
    assert kept is not first
    assert values(w) is kept
    captures(True)
    assert values(w) is not kept
    captures(False)
    assert values(w) is kept
    assert len(made) == 3


def test_empty_and_tiny_sources(doubled: Doubled):
    empty, byte = torch.empty(0, 3), torch.tensor(3, dtype=torch.uint8)

    assert doubled(empty).shape == (0, 3)
    assert doubled(byte) == 6
    byte.numpy()[...] = 4
    assert doubled(byte) == 8


def test_an_exception_leaves_nothing(doubled: Doubled):
    w = weight()

    def fail() -> None:
        raise ValueError("no value")

    with pytest.raises(ValueError, match="no value"):
        doubled.cache.derive("doubled", [w], fail)

    assert torch.equal(doubled(w), 2 * w)
    assert torch.is_grad_enabled()


# -- threads and processes --------------------------------------------------------------------------


def test_threads_compute_a_value_once(doubled: Doubled):
    weights, start = [weight(64, 64) for _ in range(20)], threading.Barrier(4)
    found: list[Any] = []

    def run() -> None:
        start.wait()
        found.extend(doubled(w) for w in weights)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert doubled.count == len(weights)
    assert all(any(torch.equal(value, 2 * w) for w in weights) for value in found)


def test_threads_that_write_and_read_never_see_an_older_version(doubled: Doubled):
    w, wrong, stop = torch.nn.Parameter(torch.zeros(1000)), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            before = w[-1].item()
            if doubled(w)[0].item() < 2 * before:
                wrong.append(before)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        with torch.no_grad():
            w.add_(1)
    stop.set()
    for thread in threads:
        thread.join()

    assert not wrong
    assert torch.equal(doubled(w), 2 * w)


def test_a_process_that_is_forked_while_a_value_is_computed_computes_its_own():
    cache, w, running, done = DerivedValues(), weight(), threading.Event(), threading.Event()

    def slow() -> Any:
        running.set()
        done.wait(60)
        return 2 * w

    thread = threading.Thread(target=lambda: cache.derive("doubled", [w], slow))
    thread.start()
    running.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        is_computed = bool(torch.equal(cache.derive("doubled", [w], lambda: 2 * w), 2 * w))
        os._exit(0 if is_computed else 1)
    done.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
