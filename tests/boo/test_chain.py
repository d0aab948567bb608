"""A chain computes what its launches compute one after another, and shares memory only between values that do not meet."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launch_samples import SMALL, Kernels, spec_of

from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.chain import Chain, HostPlan
from dispatch_profiler.boo.launching.chain_layout import ChainStep, assign_slots
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.runtime import RunError
from dispatch_profiler.runtime.iree import Appending

#: 8 x 8 times 8 x 8.
SQUARE = Matmul(8, 8, 8)


def launchable(operation: Matmul = SQUARE) -> Launchable:
    return Launchable(spec_of(operation), Kernels(operation))


def squares(count: int, seed: int = 0) -> list[torch.Tensor]:
    """Small integers, whose products are exact."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-2, 3, (8, 8), generator=generator).float() for _ in range(count)]


#: (((x a) b) (x a)) and ((x a) b)
BRANCHED = [(0, 1), (3, 2), (4, 3)]


def branched(outputs: Sequence[int] = (5, 4)) -> Chain:
    kernel = launchable()
    return Chain([ChainStep(kernel, each) for each in BRANCHED], 3, outputs)


@pytest.fixture
def chain() -> Chain:
    return branched()


@pytest.fixture
def reads_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are not copied, as large ones are not."""
    monkeypatch.setattr("dispatch_profiler.boo.launching.chain._MOST_COPIED", 0)


def expected(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = x.double() @ a.double()
    second = first @ b.double()
    return (second @ first).float(), second.float()


def test_a_chain_computes_what_its_launches_compute(chain: Chain):
    for seed in range(4):  # the first call launches the kernels one by one
        inputs = squares(3, seed)
        for found, wanted in zip(chain(*inputs), expected(*inputs), strict=True):
            assert torch.equal(found, wanted)


def test_later_calls_wait_once(monkeypatch: pytest.MonkeyPatch):
    chain, inputs = branched(), squares(3)
    chain(*inputs)
    monkeypatch.setattr(Launchable, "__call__", lambda *_: pytest.fail("launched on its own"))
    appended, executed = [], []
    append, finish = Appending.append, Appending.finish

    def counted(self: Appending, commands: object) -> Callable[[], None]:
        execute = finish(self, commands)
        return lambda: (executed.append(commands), execute())[1]

    monkeypatch.setattr(Appending, "append", lambda *args: (appended.append(args), append(*args)))
    monkeypatch.setattr(Appending, "finish", counted)

    for number in range(1, 11):
        assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])
        assert len(executed) == number and len(appended) == 3  # recorded once


@pytest.mark.parametrize(
    "keep",
    [lambda y: y, lambda y: y.view(-1)[5:], lambda y: y.numpy(), lambda y: y.untyped_storage()],
    ids=["tensor", "view", "array", "storage"],
)
def test_the_memory_of_a_result_is_used_again_once_nothing_refers_to_it(keep: Callable[[object], object]):
    chain, inputs = branched(), squares(3)
    chain(*inputs)
    found = chain(*inputs)
    address, kept = found[1].data_ptr(), keep(found[1])
    del found
    others = [chain(*inputs) for _ in range(6)]
    assert address not in [each.data_ptr() for results in others for each in results]
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.empty(0).set_(kept)
    assert torch.equal(torch.as_tensor(kept).view(-1)[-5:], expected(*inputs)[1].view(-1)[-5:])
    del others
    places = [tuple(each.data_ptr() for each in chain(*inputs)) for _ in range(4)]
    assert places == [places[0]] * 4


@pytest.mark.parametrize(
    "change", [lambda storage: storage.resize_(0), lambda storage: storage.share_memory_()]
)
def test_memory_of_a_result_that_was_changed_is_not_used_again(change: Callable[[object], object]):
    chain, inputs = branched(), squares(3)
    chain(*inputs)
    found = chain(*inputs)
    change(found[0].untyped_storage())
    del found
    for _ in range(3):
        assert all(map(torch.equal, chain(*inputs), expected(*inputs)))


@pytest.mark.usefixtures("reads_in_place")
def test_recordings_are_replaced_when_there_are_many(chain: Chain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dispatch_profiler.boo.launching.chain._KEPT_RECORDINGS", 2)
    every = [squares(3, seed) for seed in range(4)]
    for inputs in every * 3:
        assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])
    plan = chain._plans[-1]
    assert isinstance(plan, HostPlan)
    assert [len(each.recordings) for each in plan._memory] == [2]


def test_only_changing_inputs_are_looked_at_while_the_state_is_the_same():
    chain, state = branched(), object()
    x, a, b = squares(3)
    for _ in range(2):
        chain.call([0], [x, a, b], state)
    other = squares(3, seed=1)[0]
    assert torch.equal(chain.call([0], [other, a, b], state)[0], expected(other, a, b)[0])
    assert torch.equal(chain.call([0], [other, None, None], state)[0], expected(other, a, b)[0])
    # Another state, and none: everything may differ.
    for another in (object(), None, None):
        new = squares(3, seed=2)
        assert torch.equal(chain.call([0], new, another)[0], expected(*new)[0])
    transposed = other.t().contiguous().t()
    assert torch.equal(chain.call([0], [transposed, a, b], state)[0], expected(other, a, b)[0])


def test_results_of_earlier_calls_keep_their_values(chain: Chain):
    every = [squares(3, seed) for seed in range(6)]
    found = [chain(*inputs) for inputs in every]
    for results, inputs in zip(found, every, strict=True):
        assert torch.equal(results[0], expected(*inputs)[0])


def test_inputs_that_cannot_be_used_in_place_are_launched_one_by_one():
    chain, (x, a, b) = branched(), squares(3)
    chain(x, a, b)
    transposed = x.t().contiguous().t()
    unaligned = torch.empty(65)[1:].view(8, 8).copy_(a)
    assert torch.equal(chain(transposed, unaligned, b)[0], expected(x, a, b)[0])


def test_several_threads_use_one_chain(chain: Chain):
    every = [squares(3, seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda inputs: chain(*inputs)[0], every))
    assert all(torch.equal(result, expected(*inputs)[0]) for result, inputs in zip(found, every, strict=True))


def test_small_inputs_at_other_addresses_need_no_new_recording(chain: Chain):
    every = [squares(3, seed) for seed in range(5)]  # all of them exist, so that no two share memory
    for inputs in every * 2:
        assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])
    plan = chain._plans[-1]
    assert isinstance(plan, HostPlan)
    assert [len(each.recordings) for each in plan._memory] == [1]


def test_memory_that_was_released_is_allocated_again(chain: Chain):
    inputs = squares(3)
    for _ in range(2):
        chain(*inputs)
    assert chain.kept_bytes == 8 * 8 * 4  # the first product; the others are returned
    chain.release_memory()
    assert chain.kept_bytes == 0
    assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])


@pytest.mark.usefixtures("reads_in_place")
def test_a_failed_launch_raises_its_error_and_later_calls_work(monkeypatch: pytest.MonkeyPatch):
    chain, inputs = branched(), squares(3)
    chain(*inputs)
    chain(*inputs)
    append, count = Appending.append, iter(range(3))

    def second_fails(self: Appending, views: Sequence[object], scratch: object, commands: object) -> None:
        # One argument less than the kernel takes.
        append(self, views[1:] if next(count) == 1 else views, scratch, commands)

    others = squares(3, seed=1)
    with monkeypatch.context() as patched:
        patched.setattr(Appending, "append", second_fails)
        with pytest.raises(RunError, match=r"launching matmul_8x8x8_.*expected 5 arguments but passed 4"):
            chain(*others)
    assert torch.equal(chain(*others)[0], expected(*others)[0])
    assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])


@pytest.mark.slow  # a fork of a process whose threads hold locks may wait for them
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_forked_process_has_a_plan_of_its_own():
    chain, inputs = branched(), squares(3)
    for _ in range(2):
        chain(*inputs)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(torch.equal(chain(*inputs)[0], expected(*inputs)[0]) for _ in range(3)) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("steps", "outputs", "said"),
    [
        ([(0,)], (2,), "takes 2 arguments, but got 1"),
        ([(0, 3)], (2,), "takes value 3 of 2"),
        ([(0, 1)], (0,), "outputs of a chain must be different results of its steps, but got \\(0,\\)"),
        ([(0, 1)], (2, 2), "outputs of a chain"),
    ],
)
def test_values_that_do_not_exist_are_rejected(
    steps: list[tuple[int, ...]], outputs: tuple[int, ...], said: str
):
    with pytest.raises(UsageError, match=said):
        Chain([ChainStep(launchable(), each) for each in steps], 2, outputs)


def test_values_of_another_shape_are_rejected():
    steps = [ChainStep(launchable(), (0, 1)), ChainStep(launchable(SMALL), (2, 1))]
    with pytest.raises(
        UsageError, match=r"lhs of matmul_4x8x16_\S+ is f32 \(4, 16\), but value 2 is f32 \(8, 8\)"
    ):
        Chain(steps, 2, [3])


def test_a_call_takes_as_many_inputs_as_the_chain():
    with pytest.raises(UsageError, match="takes 3 inputs, but got 2"):
        branched()(*squares(2))


def test_kernels_with_different_numbers_of_threads_are_launched_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Each number of threads is a device of its own, which does not execute the commands of another."""
    monkeypatch.setattr(Appending, "append", lambda *_: pytest.fail("appended"))
    others = usable_threads() + 1, usable_threads() + 2
    kernels = [Launchable(spec_of(SQUARE), Kernels(SQUARE), threads=threads) for threads in (None, *others)]
    steps = [ChainStep(kernel, each) for kernel, each in zip(kernels, BRANCHED, strict=True)]
    chain, inputs = Chain(steps, 3, [5]), squares(3)
    for _ in range(3):
        assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])


def test_a_kernel_that_cannot_join_divides_a_chain_in_two(monkeypatch: pytest.MonkeyPatch):
    """((((x a) b) b) b) b, whose third product has a device of its own, and (x a) b, which two parts read."""
    kernel, alone = launchable(), Launchable(spec_of(SQUARE), Kernels(SQUARE), threads=usable_threads() + 1)
    steps = [
        ChainStep(alone if at == 2 else kernel, each)
        for at, each in enumerate([(0, 1), (3, 2), (4, 2), (5, 2), (6, 2)])
    ]
    submitted: list[int] = []
    run = HostPlan.run
    monkeypatch.setattr(
        HostPlan, "run", lambda plan, inputs: (submitted.append(len(inputs.changing)), run(plan, inputs))[1]
    )
    chain = Chain(steps, 3, [7, 4])
    for seed in range(4):
        submitted.clear()
        x, a, b = squares(3, seed)
        last, second = chain(x, a, b)
        assert torch.equal(second, x @ a @ b)
        assert torch.equal(
            last, (x.double() @ a.double() @ b.double() @ b.double() @ b.double() @ b.double()).float()
        )
    assert submitted == [3, 2]


def test_inputs_that_no_step_takes_may_be_anything():
    chain, (x, a) = Chain([ChainStep(launchable(), (0, 2))], 3, [3]), squares(2)
    for _ in range(3):
        assert torch.equal(chain(x, None, a)[0], x @ a)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[list[int]], set[int]]:
    """Sizes of values, arguments and results of steps, and values that are kept; values are numbered in order."""
    count = draw(st.integers(1, 4))
    arguments, results = [], []
    for _ in range(draw(st.integers(1, 10))):
        arguments.append(draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3)))
        made = draw(st.integers(1, 3))
        results.append(list(range(count, count + made)))
        count += made
    sizes = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    kept = draw(st.sets(st.sampled_from([value for each in results for value in each])))
    return sizes, arguments, results, kept


@pytest.mark.slow
@given(plans())
def test_values_in_one_slot_are_never_needed_at_once(plan):
    sizes, arguments, results, kept = plan
    slots, bytes_ = assign_slots(*plan)

    assert slots.keys() == {value for each in results for value in each} - kept
    assert all(bytes_[slot] >= sizes[value] for value, slot in slots.items())
    # Run the steps on numbers: a slot holds the value that was written last.
    held: dict[int, int] = {}
    for taken, made in zip(arguments, results, strict=True):
        for value in taken:
            assert value not in slots or held[slots[value]] == value
        written = [slots[value] for value in made if value in slots]
        assert len(set(written)) == len(written)
        assert not {slots[value] for value in taken if value in slots} & set(written)
        held.update({slots[value]: value for value in made if value in slots})


def test_a_chain_of_equal_sizes_needs_two_slots():
    sizes, steps = [4] * 12, range(11)
    _, bytes_ = assign_slots(sizes, [[at] for at in steps], [[at + 1] for at in steps], {11})
    assert bytes_ == [4, 4]


def test_a_kernel_that_cannot_be_appended_is_launched(monkeypatch: pytest.MonkeyPatch):
    chain, inputs = branched(), squares(3)
    on_threads = Launchable.on_threads
    monkeypatch.setattr(Launchable, "on_threads", lambda self: replace(on_threads(self), appending=None))
    for _ in range(3):
        assert torch.equal(chain(*inputs)[0], expected(*inputs)[0])
