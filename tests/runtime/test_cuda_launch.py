"""Launch programs on a driver that executes them in this process: parameters, streams, contexts, threads and errors."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_fake import CONTEXT, FakeCuda

from dispatch_profiler.dispatches.launch_program import Copy, Fill, KernelCode, LaunchProgram, Run, Span
from dispatch_profiler.errors import TargetError
from dispatch_profiler.runtime import RunError, cuda_launch
from dispatch_profiler.runtime.cuda_launch import BufferPlace, CudaProgram, CudaSequence, OldDriverError

COUNT = 16
SIZE = 4 * COUNT
VMFB = b"....scale....add....."


def floats(address: int) -> np.ndarray:
    """16 numbers at an address."""
    kind = np.ctypeslib.as_array
    import ctypes

    return kind((ctypes.c_float * COUNT).from_address(address))


def scale(addresses: list[int], constants: list[int], launch: Any) -> None:
    source, target = map(floats, addresses)
    target[:] = source * constants[0] + constants[1]


def add(addresses: list[int], constants: list[int], launch: Any) -> None:
    left, right, target = map(floats, addresses)
    target[:] = left + right


#: y = (2 x + 5) + x, by way of a temporary buffer, with a copy of x in its second half and zeros in another.
PROGRAM = LaunchProgram(
    images=((4, 5), (13, 3)),
    kernels=(KernelCode(0, "scale", (32, 1, 1), 0), KernelCode(1, "add", (8, 4, 1), 65536)),
    arguments=(SIZE, SIZE),
    transients=(10, 2 * SIZE),
    commands=(
        Fill(Span(2, 0, 10), 0x0102, 2),
        Copy(Span(0, 0, SIZE), Span(3, SIZE, SIZE)),
        Run(0, (3, 2, 1), (Span(3, SIZE, SIZE), Span(3, 0, SIZE)), (2, 5)),
        Run(1, (1, 1, 7), (Span(3, 0, SIZE), Span(0, 0, SIZE), Span(1, 0, SIZE))),
    ),
)


class Memory:
    """Arguments and temporary memory of a launch."""

    def __init__(self, program: CudaProgram, seed: int = 0) -> None:
        self.x = np.random.default_rng(seed).integers(0, 100, COUNT).astype(np.float32)
        self.y = np.zeros(COUNT, np.float32)
        self.scratch = np.full(program.transient_bytes, 77, np.uint8)
        self.addresses = [each.ctypes.data for each in (self.x, self.y, self.scratch)]

    def check(self) -> None:
        assert (self.y == 3 * self.x + 5).all()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake(monkeypatch)


def fake(monkeypatch: pytest.MonkeyPatch, without: str = "") -> FakeCuda:
    found = FakeCuda({"scale": (2, 2, scale), "add": (3, 0, add)}, without)
    monkeypatch.setattr(cuda_launch, "driver_library", lambda: found.library)
    monkeypatch.setattr(cuda_launch, "_process", cuda_launch._CudaProcess())
    return found


def load(program: LaunchProgram = PROGRAM) -> CudaProgram:
    return CudaProgram(program, VMFB, 0, "sample")


def test_commands_are_launched_in_order_on_the_given_stream(cuda: FakeCuda):
    program = load()
    cuda.contexts.append(CONTEXT)
    for stream in (0, 0x5000, 0x5000, 0):
        memory = Memory(program, seed=stream)
        cuda.log.clear()
        program.launch(memory.addresses, stream)

        memory.check()
        assert cuda.log == [(each, stream) for each in ("fill 2", "copy", "scale", "add")]
        assert memory.scratch[:12].tolist() == [2, 1] * 5 + [77, 77]


def test_grids_blocks_and_shared_memory_are_those_of_the_program(cuda: FakeCuda):
    seen: dict[str, SimpleNamespace] = {}
    for name, (pointers, constants, run) in cuda.kernels.items():
        cuda.kernels[name] = (
            pointers,
            constants,
            lambda a, c, launch, name=name: seen.update({name: launch}),
        )
        assert run
    program = load()
    program.launch(Memory(program).addresses, 0)

    assert (seen["scale"].grid, seen["scale"].block, seen["scale"].shared) == ((3, 2, 1), (32, 1, 1), 0)
    assert (seen["add"].grid, seen["add"].block, seen["add"].shared) == ((1, 1, 7), (8, 4, 1), 65536)
    assert cuda.shared == {"add": 65536}
    assert cuda.modules == [b"scale", b"add"]


def test_temporary_buffers_share_an_allocation_but_no_memory(cuda: FakeCuda):
    """Each begins at a multiple of 256 bytes; a program without any needs none."""
    assert load().transient_bytes == 512
    assert load(replace(PROGRAM, transients=(257, 2 * SIZE))).transient_bytes == 768
    only = replace(PROGRAM, transients=(), commands=(Copy(Span(0, 0, SIZE), Span(1, 0, SIZE)),))
    assert load(only).transient_bytes == 0


def test_modules_are_loaded_in_the_primary_context_also_while_a_graph_is_captured(cuda: FakeCuda):
    load()

    assert cuda.log == ["push", "capture mode 2", "capture mode 0", "pop"]
    assert cuda.contexts == []


@pytest.mark.parametrize("other", [[], [CONTEXT + 1]])
def test_a_thread_without_the_context_gets_it_for_the_launch(cuda: FakeCuda, other: list[int]):
    program = load()
    cuda.contexts.extend(other)
    memory = Memory(program)
    cuda.log.clear()
    program.launch(memory.addresses, 3)

    memory.check()
    assert (cuda.log[0], cuda.log[-1]) == ("push", "pop")
    assert cuda.contexts == other


def test_threads_that_launch_at_once_do_not_share_parameters(cuda: FakeCuda):
    """All are between their first and their last command at the same time."""
    program, barrier = load(), threading.Barrier(4)
    slow = cuda.kernels["scale"]

    def wait_and_scale(*given: Any) -> None:
        barrier.wait(60)
        slow[2](*given)
        barrier.wait(60)

    cuda.kernels["scale"] = (*slow[:2], wait_and_scale)
    memories = [Memory(program, seed) for seed in range(4)]
    for turn in range(3):
        threads = [
            threading.Thread(target=program.launch, args=(each.addresses, 10 * turn + number))
            for number, each in enumerate(memories)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for memory in memories:
            memory.check()
            memory.y[:] = 0
    assert len(program._sequence._idle) == 4


def test_a_sequence_adds_all_programs_to_the_stream(cuda: FakeCuda):
    """The second one reads what the first has written; both use the same temporary memory."""
    program = load()
    memory = np.full(SIZE + program.transient_bytes, 77, np.uint8)
    first, last = BufferPlace(1), BufferPlace(2)
    steps = [
        (program, [BufferPlace(0), first]),
        (program, [first, last]),
        (program, [last, BufferPlace(1, 0)]),
    ]
    sequence = CudaSequence(steps, BufferPlace(3, SIZE))
    for stream, seed in ((0, 1), (7, 1), (7, 2)):
        given = Memory(program, seed)
        results = np.zeros((2, COUNT), np.float32)
        addresses = [given.x.ctypes.data, *(each.ctypes.data for each in results), memory.ctypes.data]
        cuda.log.clear()
        sequence.launch(addresses, stream)

        second = 3 * (3 * given.x + 5) + 5
        assert (results[1] == second).all()
        assert (results[0] == 3 * second + 5).all()
        assert (memory[:SIZE] == 77).all()
        added = [each for each in cuda.log if each not in ("push", "pop")]
        assert added == [(each, stream) for each in ("fill 2", "copy", "scale", "add")] * 3


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["cuLaunchKernelEx", "cuMemsetD16Async", "cuMemcpyDtoDAsync_v2"])
def test_a_launch_that_fails_names_the_operation_and_cudas_error(cuda: FakeCuda, function: str):
    program = load()
    memory = Memory(program)
    cuda.statuses[function] = 1
    with pytest.raises(RunError, match="launching sample failed: CUDA_ERROR_INVALID_VALUE"):
        program.launch(memory.addresses, 0)
    cuda.statuses[function] = 4711
    with pytest.raises(RunError, match="launching sample failed: CUDA error 4711"):
        program.launch(memory.addresses, 0)
    cuda.statuses.clear()
    program.launch(memory.addresses, 0)
    memory.check()
    assert cuda.contexts == []


def test_kernels_that_cannot_be_loaded_are_errors(cuda: FakeCuda):
    missing = replace(PROGRAM, kernels=(replace(PROGRAM.kernels[0], entry="scales"), PROGRAM.kernels[1]))
    with pytest.raises(RunError, match="loading the kernel scales failed: CUDA_ERROR_NOT_FOUND"):
        load(missing)
    cuda.statuses["cuModuleLoadDataEx"] = 218
    with pytest.raises(RunError, match="loading a kernel failed: CUDA_ERROR_INVALID_PTX"):
        load()
    cuda.statuses = {"cuFuncSetAttribute": 1}
    with pytest.raises(RunError, match="loading the kernel add failed: CUDA_ERROR_INVALID_VALUE"):
        load()
    assert cuda.contexts == []


def test_a_driver_that_is_too_old_or_missing_is_an_error(monkeypatch: pytest.MonkeyPatch):
    fake(monkeypatch, without="cuLaunchKernelEx")
    with pytest.raises(OldDriverError, match="too old: it has no cuLaunchKernelEx"):
        load()
    monkeypatch.setattr(cuda_launch, "driver_library", lambda: None)
    with pytest.raises(TargetError, match="no NVIDIA driver"):
        load()


def test_a_forked_process_cannot_launch(cuda: FakeCuda):
    """After a launch of its parent; the parent still can."""
    program = load()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            load()
            os.write(write, b"loaded")
        except TargetError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"CUDA was used before this process was forked" in os.read(read, 1000)
    memory = Memory(program)
    load().launch(memory.addresses, 0)
    memory.check()
