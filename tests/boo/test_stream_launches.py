"""Launches with launch programs, on a driver that executes them in this process: the CPU stands for the GPU."""

from __future__ import annotations

import ctypes
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from cuda_fake import CONTEXT, FakeCuda

from dispatch_profiler.boo import Launchable
from dispatch_profiler.boo.driver.runs.outcomes import DriverBackend, SignatureLaunch
from dispatch_profiler.boo.driver.tracing.traced import _WithoutPrograms
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.launching import loading
from dispatch_profiler.boo.launching.arrays import torch_tensors
from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors
from dispatch_profiler.boo.launching.chain import Chain
from dispatch_profiler.boo.launching.chain_layout import ChainStep
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.boo.op_exports.layer_norm import LayerNormSignature
from dispatch_profiler.compiler import IreeCompiler, launch_request
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.dispatches.launch_program import read_program
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime import RunError, cuda_launch
from dispatch_profiler.runtime.cuda_launch import CudaProgram, CudaSequence
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import parse_target

torch: Any = pytest.importorskip("torch")

GPU = DeviceUri("cuda", "0")
STREAM = 0x7000
M, N, K = 8, 12, 5
GEMM = GEMMSignature(a_shape=(M, K), b_shape=(K, N), dtype="f32")
SQUARE = GEMMSignature(a_shape=(M, M), b_shape=(M, M), dtype="f32")
NORM = LayerNormSignature(input_shape=[4, 6, 16], normalized_shape=[16], dtype="f32")


@functools.cache
def compiled(operation: Operation) -> LaunchKernel:
    """As the launch cache has it for sm_80."""
    dispatch = Dispatch(operation, Default())
    built = IreeCompiler().build(launch_request(dispatch, parse_target("cuda:sm_80")))
    return LaunchKernel(built.verify, dispatch.name, operation.name, built.program)


class Kernels:
    """See `KernelProvider`."""

    def __init__(self, kernel: LaunchKernel) -> None:
        self.found = kernel

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        assert device == GPU
        return self.found


def tensor_at(address: int, *shape: int) -> Any:
    count = torch.Size(shape).numel()
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32).view(shape)


def product(addresses: list[int], constants: list[int], launch: Any) -> None:
    a, b, c = addresses
    tensor_at(c, M, N)[:] = tensor_at(a, M, K) @ tensor_at(b, K, N)


def square_product(addresses: list[int], constants: list[int], launch: Any) -> None:
    a, b, c = (tensor_at(each, M, M) for each in addresses)
    c[:] = a @ b


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A driver whose kernels are those of two products; tensors of the CPU are on the GPU."""
    (kernel,), (square,) = program_of(GEMM).kernels, program_of(SQUARE).kernels
    found = FakeCuda({kernel.entry: (3, 0, product), square.entry: (3, 0, square_product)})
    found.contexts.append(CONTEXT)
    monkeypatch.setattr(cuda_launch, "driver_library", lambda: found.library)
    monkeypatch.setattr(cuda_launch, "_process", cuda_launch._CudaProcess())
    monkeypatch.setattr(TorchTensors, "uri", property(lambda _: GPU))
    monkeypatch.setattr(TorchTensors, "fast_launch", fast_launch)
    monkeypatch.setattr(torch_tensors, "current_stream", lambda index: STREAM if index == -1 else None)
    return found


def fast_launch(tensors: Any, kernel: CudaProgram, spec: Any) -> Any:
    from dispatch_profiler.boo.launching.arrays.torch_tensors import stream_launch

    return stream_launch(kernel, spec, tensors._device)


def program_of(signature: Any) -> Any:
    kernel = compiled(signature.operation)
    return read_program(kernel.program, kernel.vmfb)


def launchable(**changes: Any) -> Launchable:
    return Launchable(GEMM.launch, Kernels(replace(compiled(GEMM.operation), **changes)))


def sample(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(-9, 9, shape, generator=generator).float() for shape in ((M, K), (K, N)))


def test_launches_are_on_torchs_current_stream(cuda: FakeCuda):
    """The first one checks everything, the next ones are fast."""
    launch, results = launchable(), []
    for seed in range(3):
        a, b = sample(seed)
        results.append((launch(a, b), a @ b))
        assert cuda.log.pop()[1] == STREAM
    for found, expected in results:
        assert torch.equal(found, expected)
    assert isinstance(launch.program_on(GPU), CudaProgram)
    assert launch.driver == ""


def test_results_are_written_to_out_and_noticed_by_autograd(cuda: FakeCuda):
    launch, out = launchable(), torch.zeros(M, N)
    for seed in range(3):
        a, b = sample(seed)
        before = out._version
        assert launch(a, b, out=out) is out
        assert torch.equal(out, a @ b)
        assert out._version > before


def test_what_a_kernel_cannot_use_in_place_is_copied(cuda: FakeCuda):
    """Also after the first launch: misaligned, strided, negated, and results in the memory of arguments."""
    launch, (a, b) = launchable(), sample()
    misaligned = torch.empty(M * K + 1)[1:].view(M, K).copy_(a)
    strided = torch.empty(K, M).t().copy_(a)
    wide = torch.empty(M, 2 * N)[:, ::2]
    shared = torch.empty(M * N + K * N)
    for _ in range(2):
        for lhs in (misaligned, strided, torch.complex(a, -a).conj().imag):
            assert torch.equal(launch(lhs, b), a @ b)
        assert launch(a, b, out=wide) is wide
        assert torch.equal(wide, a @ b)
        inner = shared[: K * N].view(K, N).copy_(b)
        out = shared[: M * N].view(M, N)
        assert torch.equal(launch(a, inner, out=out), a @ b)


def test_arguments_that_do_not_fit_are_rejected(cuda: FakeCuda):
    launch, (a, b) = launchable(), sample()
    for _ in range(2):
        for bad in [(a,), (a, b, b), (a.double(), b), (a[:3], b), (a, b.t()), (a, b.numpy()), (a, None)]:
            with pytest.raises(UsageError):
                launch(*bad)
        assert torch.equal(launch(a, b), a @ b)


def test_a_launch_that_fails_names_operation_and_error_and_the_next_one_works(cuda: FakeCuda):
    launch, (a, b) = launchable(), sample()
    for _ in range(2):
        cuda.statuses["cuLaunchKernelEx"] = 1
        with pytest.raises(
            RunError, match=f"launching {GEMM.operation.name} failed: CUDA_ERROR_INVALID_VALUE"
        ):
            launch(a, b)
        cuda.statuses.clear()
        assert torch.equal(launch(a, b), a @ b)


def test_a_signatures_order_of_tensors_is_not_that_of_its_operation(cuda: FakeCuda):
    """Kernels take operands by position: with exchanged arguments, the caller passes b first."""
    a, b = sample()
    spec = replace(GEMM.launch, arguments=GEMM.launch.arguments[::-1])
    launch = Launchable(spec, Kernels(compiled(GEMM.operation)))
    for _ in range(2):
        assert torch.equal(launch(b, a), a @ b)


def addresses_of_norms(cuda: FakeCuda) -> list[int]:
    """Gets the addresses that the layer norm's kernels are launched with."""
    program, seen = program_of(NORM), list[int]()
    for kernel in program.kernels:
        count = next(
            len(run.bindings)
            for run in program.commands
            if hasattr(run, "bindings") and program.kernels[run.kernel] == kernel
        )
        cuda.kernels[kernel.entry] = (count, 0, lambda addresses, *_: seen.extend(addresses))
    return seen


def test_temporary_memory_lives_until_the_commands_are_in_the_stream(cuda: FakeCuda):
    """The layer norm's kernels get the addresses of arguments, results and temporary memory."""
    seen = addresses_of_norms(cuda)
    launch = Launchable(NORM.launch, Kernels(compiled(NORM.operation)))
    arguments = NORM.get_sample_args(seed=0)
    for _ in range(2):
        seen.clear()
        results = launch(*arguments)
        known = {each.data_ptr() for each in (*arguments, *results)}
        assert {each.data_ptr() for each in arguments} <= set(seen)
        assert results[0].data_ptr() in seen
        others = {address for address in seen if address not in known}
        assert others
        assert all(address % 64 == 0 for address in others)


# -- chains ----------------------------------------------------------------------------------------


def branched() -> Chain:
    """(x, a, b) -> ((x a) b) (x a) and (x a) b"""
    kernel = Launchable(SQUARE.launch, Kernels(compiled(SQUARE.operation)))
    return Chain([ChainStep(kernel, each) for each in ((0, 1), (3, 2), (4, 3))], 3, (5, 4))


@pytest.fixture
def chain(cuda: FakeCuda) -> Chain:
    return branched()


def squares(seed: int = 0) -> list[Any]:
    """Small integers, whose products are exact."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-2, 3, (M, M), generator=generator).float() for _ in range(3)]


def check(found: Any, x: Any, a: Any, b: Any) -> None:
    first, second = found
    assert torch.equal(second, x @ a @ b)
    assert torch.equal(first, x @ a @ b @ (x @ a))


def test_the_launches_of_a_chain_are_added_to_torchs_stream_at_once(
    chain: Chain, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
):
    """The first call launches one by one; later ones give results new memory."""
    check(chain(*squares()), *squares())
    monkeypatch.setattr(Launchable, "__call__", lambda *_: pytest.fail("launched on its own"))
    kept = []
    for seed in range(4):
        cuda.log.clear()
        kept.append(chain(*squares(seed)))
        assert [stream for _, stream in cuda.log] == [STREAM] * 3
    for seed, found in enumerate(kept):
        check(found, *squares(seed))


def test_what_a_chain_cannot_use_in_place_is_launched_one_by_one(cuda: FakeCuda):
    chain, (x, a, b) = branched(), squares()
    for _ in range(3):
        check(chain(x.t().contiguous().t(), a, torch.empty(M * M + 1)[1:].view(M, M).copy_(b)), x, a, b)


def test_a_chain_that_fails_names_the_operation_and_the_next_call_works(chain: Chain, cuda: FakeCuda):
    chain(*squares())
    for _ in range(2):
        cuda.statuses["cuLaunchKernelEx"] = 1
        with pytest.raises(
            RunError, match=f"launching {SQUARE.operation.name} failed: CUDA_ERROR_INVALID_VALUE"
        ):
            chain(*squares())
        cuda.statuses.clear()
        check(chain(*squares(1)), *squares(1))


def test_threads_call_one_chain(chain: Chain, cuda: FakeCuda):
    chain(*squares())

    def call(seed: int) -> Any:
        cuda.contexts[:] = [CONTEXT]
        return chain(*squares(seed))

    with ThreadPoolExecutor(4) as pool:
        for seed, found in enumerate(pool.map(call, range(40))):
            check(found, *squares(seed))


def test_the_temporary_memory_of_a_chain_lies_behind_its_values(cuda: FakeCuda):
    """The kernels of two layer norms get the addresses of arguments, results and temporary memory."""
    seen = addresses_of_norms(cuda)
    launch = Launchable(NORM.launch, Kernels(compiled(NORM.operation)))
    x, *rest = NORM.get_sample_args(seed=0)
    count = len(NORM.launch.results)
    steps = [ChainStep(launch, (0, *range(1, 1 + len(rest))))]
    steps.append(ChainStep(launch, (1 + len(rest), *range(1, 1 + len(rest)))))
    chain = Chain(steps, 1 + len(rest), (1 + len(rest) + count,))
    chain(x, *rest)
    seen.clear()
    (found,) = chain(x, *rest)
    inside = sorted({each for each in seen if each not in {t.data_ptr() for t in (x, *rest, found)}})
    # The first result, and at least one temporary buffer; none overlaps the result.
    assert len(inside) >= 2
    assert all(address % 64 == 0 for address in inside)
    assert all(later - inside[0] >= x.nbytes for later in inside[1:])


def test_a_chain_with_a_kernel_that_irees_runtime_launches_is_launched_one_by_one(
    chain: Chain, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Launchable, "program_on", lambda self, uri: None)
    monkeypatch.setattr(CudaSequence, "launch", count_calls(launches := [], CudaSequence.launch))
    for seed in range(3):
        check(chain(*squares(seed)), *squares(seed))
    assert len(launches) == 9


def count_calls(found: list[Any], function: Any) -> Any:
    return lambda *args: (found.append(args), function(*args))[1]


# -- kernels that IREE's runtime launches ----------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "compiled without a launch program"),
        ('{"reason": "a size is not constant"}', "a size is not constant"),
        ("{}", "its launch program is damaged: images: missing"),
    ],
)
def test_without_a_usable_program_irees_runtime_launches(
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    reason: str,
):
    loaded = object()
    monkeypatch.setattr(loading, "IreeDevice", lambda *_, **__: "device")
    monkeypatch.setattr(loading, "load", lambda *_: loaded)
    kernel = replace(compiled(GEMM.operation), program=program)
    with caplog.at_level(logging.DEBUG, "dispatch_profiler.boo"):
        assert loading.load_on_gpu(kernel, GPU, GEMM.launch) is loaded
    assert f"{GEMM.operation.name}: " in caplog.text
    assert reason in caplog.text


def test_a_program_of_another_operation_is_not_used(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch):
    """Its kernels would read and write behind the tensors."""
    monkeypatch.setattr(loading, "IreeDevice", lambda *_, **__: "device")
    monkeypatch.setattr(loading, "load", lambda *_: "IREE")
    larger = GEMMSignature(a_shape=(M, K), b_shape=(K, 2 * N), dtype="f32")
    assert loading.load_on_gpu(compiled(larger.operation), GPU, GEMM.launch) == "IREE"
    assert loading.load_on_gpu(compiled(GEMM.operation), GPU, NORM.launch) == "IREE"


def test_traces_have_only_what_irees_runtime_launches():
    kernels = _WithoutPrograms(Kernels(compiled(GEMM.operation)))
    assert kernels.kernel(GPU) == replace(compiled(GEMM.operation), program="")


# -- around launches -------------------------------------------------------------------------------


def test_the_driver_waits_for_launches_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """Their times are those of complete results, as torch's are."""
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    calls: list[Any] = []
    work = SignatureLaunch(GEMM, lambda *given: calls.append(given), sample(), "cuda:0").work(
        DriverBackend.BOO
    )
    work.time(3)

    assert len(calls) == 3
    assert waited == [torch.device("cuda:0")] * 4


def test_tensors_of_a_gpu_are_rejected_in_a_forked_process(monkeypatch: pytest.MonkeyPatch):
    from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors

    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(TargetError, match="before this process was forked"):
        TorchTensors(torch.device("cuda", 0))
