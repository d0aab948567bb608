"""Running on a GPU through CUDA: operands lie in the device's own memory, and bad kernels cost only themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from cuda_helpers import need_gpu, run

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import (
    TargetError,
    UsageError,
    WorkerCrashed,
    WorkerOutOfMemory,
    WorkerTimedOut,
)
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import Distribution, ElementTypes, Matmul
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Vmfb
from dispatch_profiler.profiler.evaluation.workers import provide, ref_of
from dispatch_profiler.profiler.measurement.gpu_monitor import open_monitor
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result
from dispatch_profiler.runtime import RunError, open_device
from dispatch_profiler.runtime.cuda_driver import find_gpu, gpu_count

SMALL = Matmul(2, 2, 2)
EYES = [np.eye(2, dtype=np.float32)] * 2
T = "tensor<2x2xf32>"
SIGNATURE = (
    f"func.func @{Dispatch(SMALL, Default()).name}"
    f"(%lhs: {T}, %rhs: {T}, %result: {T} {{iree.abi.output = 0 : index}}) -> {T}"
)
#: Hands its destination back untouched.
UNWRITTEN = f"{SIGNATURE} {{\n  return %result : {T}\n}}\n"
_EACH = """#same = affine_map<(a, b) -> (a, b)>
{signature} {{
  %r = linalg.generic {{indexing_maps = [#same, #same, #same], iterator_types = ["parallel", "parallel"]}}
      ins(%lhs, %rhs : {t}, {t}) outs(%result : {t}) {{
  ^bb0(%a: f32, %b: f32, %c: f32):
{body}
    linalg.yield %found : f32
  }} -> {t}
  return %r : {t}
}}
"""
#: Takes a minute, so that a driver that did not end it would be rid of it some time.
HANG = _EACH.format(
    signature=SIGNATURE,
    t=T,
    body="""    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %many = arith.constant 30000000000 : index
    %found = scf.for %i = %zero to %many step %one iter_args(%sum = %a) -> (f32) {
      %next = math.fma %sum, %b, %a : f32
      scf.yield %next : f32
    }""",
)
#: Reads where nothing is.
ASTRAY = _EACH.format(
    signature=SIGNATURE,
    t=T,
    body="""    %far = arith.constant 1.0e+12 : f32
    %there = arith.mulf %a, %far : f32
    %whole = arith.fptosi %there : f32 to i64
    %i = arith.index_cast %whole : i64 to index
    %found = tensor.extract %lhs[%i, %i] : tensor<2x2xf32>""",
)


@pytest.fixture
def gpu() -> None:
    need_gpu()


@pytest.mark.parametrize(
    ("types", "target"),
    [
        (ElementTypes("f64", "f64", "f64"), "cuda:sm_80"),
        (ElementTypes("f32", "f32", "f32"), "cuda:sm_80"),
        (ElementTypes("f16", "f16", "f16"), "cuda:sm_80"),
        (ElementTypes("bf16", "bf16", "bf16"), "cuda:sm_80"),
        (ElementTypes("f8", "f8", "f32"), "cuda:sm_89"),
        (ElementTypes("i8", "i8", "i32"), "cuda:sm_80"),
    ],
    ids=lambda x: x.lhs if isinstance(x, ElementTypes) else "",
)
def test_every_type_travels_unchanged(for_cuda, types: ElementTypes, target: str):
    """With the identity as rhs the result holds the lhs, value by value."""
    operation = Matmul(16, 16, 16, types)
    built = for_cuda(operation, target)
    lhs = (np.arange(256).reshape(16, 16) % 17 - 8).astype(types.input.dtype)
    identity = np.eye(16).astype(types.input.dtype)

    result = run(built, operation, [lhs, identity])

    assert result.dtype == types.output.dtype
    assert result.astype(np.float64).tolist() == lhs.astype(np.float64).tolist()


@pytest.mark.parametrize("distribution", list(Distribution))
def test_every_element_of_a_large_result_arrives(for_cuda, distribution: Distribution):
    """16 MiB, with bias: more than one piece of a transfer."""
    operation = Matmul(2048, 2048, 32)
    built = for_cuda(operation)
    inputs = draw(operation, distribution, 7)

    assert compare_result(
        operation.result, run(built, operation, inputs), reference(operation, inputs)
    ).passed


def test_operands_lie_in_the_memory_of_the_device(gpu):
    """Bit 1 of a memory type is HOST_VISIBLE: such memory would be managed, and wander."""
    operands = open_kernels("cuda").put(SMALL, EYES)

    assert [buffer.view.get_buffer().memory_type() & 2 for buffer in operands.handles] == [0, 0, 0]


def test_an_unwritten_result_shows_as_poison(for_cuda):
    assert np.isnan(run(for_cuda(SMALL, source=UNWRITTEN), SMALL, EYES)).all()


def test_each_run_has_a_result_of_its_own_and_time_passes(for_cuda):
    function, vmfb = for_cuda(SMALL, repeat=3)
    need_gpu()
    device = open_kernels("cuda")
    call = device.load(vmfb.read_bytes()).bind(function, device.put(SMALL, EYES))

    first, second = call.run()[0], call.run()[0]

    assert first.tolist() == second.tolist() == np.eye(2).tolist()
    assert not np.shares_memory(first, second)
    assert call.time(3) > 0.0


def test_a_gpu_is_described_as_the_drivers_own_tool_does(gpu):
    found = find_gpu("cuda://0")
    names = "name,uuid,compute_cap,clocks.max.sm,driver_version,power.limit"
    told = _nvidia_smi(names)
    monitor = open_monitor("cuda")

    assert found is not None
    assert [found.name, found.uuid, "{}.{}".format(*found.capability)] == told[:3]
    assert found == find_gpu(f"cuda://{found.uuid}")
    assert found.l2_bytes == open_kernels("cuda").cache_bytes > 0
    if monitor is not None:
        state = monitor.read()
        assert [str(state.max_sm_mhz), monitor.driver] == told[3:5]
        assert state.limit_watts == pytest.approx(float(told[5]), rel=0.01)
        assert 0 < state.sm_mhz <= state.max_sm_mhz


def _nvidia_smi(names: str) -> list[str]:
    command = ["nvidia-smi", "--id=0", f"--query-gpu={names}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except OSError:
        pytest.skip("no nvidia-smi to compare with")
    return [part.strip() for part in answer.split(",")]


# -- bad input -------------------------------------------------------------------------------------


def test_a_device_of_a_number_that_is_not_there_is_told(gpu):
    with pytest.raises(TargetError, match=rf"no device 'cuda://{gpu_count()}'.*not found"):
        open_device(f"cuda://{gpu_count()}")


@pytest.mark.parametrize(
    ("target", "said"), [("cuda:sm_120", "INVALID_PTX"), ("rocm:gfx942", "it is rocm code")]
)
def test_a_vmfb_for_another_gpu_is_told(for_cuda, target: str, said: str):
    built = for_cuda(SMALL, target)
    described = find_gpu("cuda")
    if target == "cuda:sm_120" and described is not None and described.capability >= (12, 0):
        pytest.skip("this GPU takes that code")

    with pytest.raises(RunError, match=f"loading the vmfb failed: .*{said}"):
        run(built, SMALL, EYES)


def test_too_little_memory_on_the_device_is_told(gpu):
    import iree.runtime as rt

    device = open_kernels("cuda")
    held, size = [], 2**35
    while size >= 2**24:
        try:
            held.append(
                device._device.hal.allocator.allocate_buffer(
                    rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, size
                )
            )
        except RuntimeError:
            size //= 2
    operation = Matmul(4096, 4096, 4096)

    with pytest.raises(WorkerOutOfMemory, match="out of memory while copying operands"):
        device.put(operation, [np.zeros((4096, 4096), np.float32)] * 2)

    del held
    assert device.put(SMALL, EYES).handles


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(WorkerLimits(seconds=60.0), device_worker.start, ("cuda", "")) as found:
        yield found


@pytest.mark.parametrize(
    ("source", "verdict", "said"),
    [(HANG, WorkerTimedOut, "within 5 s"), (ASTRAY, WorkerCrashed, "CUDA_ERROR_ILLEGAL_ADDRESS")],
    ids=["hang", "astray"],
)
def test_a_bad_kernel_costs_only_itself(for_cuda, worker: Worker, source: str, verdict: type, said: str):
    """The next call finds a process, and a GPU, that work."""
    (bad, bad_vmfb), (good, good_vmfb) = for_cuda(SMALL, source=source), for_cuda(SMALL)
    need_gpu()
    vmfbs = [Vmfb.of(path.read_bytes()) for path in (bad_vmfb, good_vmfb)]
    modules = [ref_of(vmfb, 1) for vmfb in vmfbs]
    provide(worker, vmfbs)

    with pytest.raises(verdict, match=said):
        worker.call(device_worker.run_once, modules[0], bad, SMALL, Distribution.REALS, 1, seconds=5.0)
    provide(worker, vmfbs)
    (result,) = worker.call(device_worker.run_once, modules[1], good, SMALL, Distribution.INTEGERS, 1)

    assert compare_result(
        SMALL.result, result, reference(SMALL, draw(SMALL, Distribution.INTEGERS, 1))
    ).passed


@pytest.mark.parametrize("uri", ["hip", "hip://0", "vulkan"])
def test_a_device_of_a_driver_that_is_not_there_is_told(uri: str):
    try:
        open_device(uri)
    except UsageError as error:
        assert error.message.startswith(f"no device {uri!r} on this machine: ")
        assert "\n" not in error.message
    else:
        pytest.skip(f"this machine has a device {uri}")
