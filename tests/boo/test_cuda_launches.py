"""Launches on an NVIDIA GPU: results, streams, CUDA graphs, threads, and memory. Skipped without one."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from boo_signatures import torch_results

from dispatch_profiler.boo import Launchable, get_launchable
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.boo.op_exports import Mode
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.boo.op_exports.layer_norm import LayerNormSignature
from dispatch_profiler.dispatches.launch_program import read_program
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.runtime import RunError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here")

GPU = DeviceUri("cuda", "0")
DTYPES = ("f32", "f16", "bf16")
#: Largest difference relative to the largest expected value: a few roundings of the type, of f32 with the sum's.
TOLERANCES = {"f32": 1e-4, "f16": 3e-3, "bf16": 2e-2}
#: Cycles of a kernel that does nothing, about 0.3 s.
LONG = 500_000_000


def conv(dtype: str = "f32", mode: str = "fwd", **changes: Any) -> ConvSignature:
    values = {"input_shape": [2, 8, 9, 7], "kernel_shape": [16, 8, 3, 3], "padding": 1, "bias": mode == "fwd"}
    return ConvSignature(**{**values, "dtype": dtype, "mode": mode, **changes})


def nhwc(dtype: str = "f32", mode: str = "fwd") -> ConvSignature:
    shapes = {"input_shape": [2, 12, 16, 32], "kernel_shape": [64, 3, 3, 32], "shared_layout": "NHWC"}
    return conv(dtype, mode, bias=False, **shapes)


def pointwise(dtype: str, mode: str, layout: str) -> ConvSignature:
    """On tensor cores in 16-bit types, and once wrong there: see `compiler/passes/padded_products.py`."""
    extents = {"N": 2, "C": 64, "H": 16, "W": 16}
    image = [extents[each] for each in layout]
    filters = [{**extents, "N": 96, "H": 1, "W": 1}[each] for each in layout]
    shapes = {"input_shape": image, "kernel_shape": filters, "shared_layout": layout}
    return conv(dtype, mode, bias=False, padding=0, **shapes)


def gemm(dtype: str = "f32", mode: Mode = Mode.FORWARD) -> GEMMSignature:
    return GEMMSignature(a_shape=(64, 96), b_shape=(96, 48), transpose_b=True, dtype=dtype, mode=mode)


def norm(dtype: str = "f32", mode: Mode = Mode.FORWARD) -> LayerNormSignature:
    return LayerNormSignature(input_shape=[6, 10, 64], normalized_shape=[64], dtype=dtype, mode=mode)


SIGNATURES: list[Callable[[str], Any]] = [
    *(lambda dtype, mode=mode: conv(dtype, mode) for mode in ("fwd", "bwd", "wrw")),
    *(lambda dtype, mode=mode: nhwc(dtype, mode) for mode in ("fwd", "bwd", "wrw")),
    *(lambda dtype, mode=mode: pointwise(dtype, mode, "NHWC") for mode in ("fwd", "bwd", "wrw")),
    *(lambda dtype, mode=mode: pointwise(dtype, mode, "NCHW") for mode in ("fwd", "bwd", "wrw")),
    lambda dtype: conv(dtype, "bwd", bias=False, stride=2),
    lambda dtype: conv(dtype, bias=False, kernel_shape=[16, 4, 3, 3], groups=2),
    *(lambda dtype, mode=mode: gemm(dtype, mode) for mode in list(Mode)[:3]),
    *(lambda dtype, mode=mode: norm(dtype, mode) for mode in Mode),
]


def each_of(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def check(results: Any, signature: Any, arguments: Any) -> None:
    """Compare with what torch computes in float64 on the CPU."""
    expected = torch_results(signature, [each.double().cpu() for each in arguments])
    for found, wanted in zip(each_of(results), expected, strict=True):
        assert tuple(found.shape) == tuple(wanted.shape)
        assert found.isfinite().all()
        largest = wanted.abs().max().item()
        assert (found.double().cpu() - wanted).abs().max().item() <= TOLERANCES[signature.dtype] * largest


def sample(signature: Any, seed: int = 0) -> Any:
    return signature.get_sample_args(device="cuda", seed=seed)


def program_of(launch: Launchable) -> CudaProgram:
    found = launch.program_on(GPU)
    assert isinstance(found, CudaProgram)
    return found


def load(kernel: LaunchKernel, **changes: Any) -> CudaProgram:
    """A kernel on the GPU, with a change of its program's first kernel."""
    program = read_program(kernel.program, kernel.vmfb)
    first, *others = program.kernels
    changed = replace(program, kernels=(replace(first, **changes), *others))
    return CudaProgram(changed, kernel.vmfb, 0, "test")


def kernel_of(signature: Any) -> LaunchKernel:
    return OperationKernels(signature.operation, signature.func_name, launch_settings()).kernel(GPU)


class WithoutProgram:
    """See `KernelProvider`: kernels that only IREE's runtime can launch."""

    def __init__(self, signature: Any) -> None:
        self.signature = signature

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        return replace(kernel_of(self.signature), program="")


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(SIGNATURES)))
def test_results_are_those_of_torch_in_float64(number: int, dtype: str):
    """The first launch takes another way than the next ones; both launch without IREE's runtime."""
    signature = SIGNATURES[number](dtype)
    launch = get_launchable(signature)
    for seed in range(3):
        arguments = sample(signature, seed)
        results = launch(*arguments)
        check(results, signature, arguments)
        assert all(each.is_cuda and not each.requires_grad for each in each_of(results))
    assert program_of(launch)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("channels", [8, 40])
def test_nothing_is_read_behind_an_operand(dtype: str, channels: int):
    """Zero times NaN is NaN: see `compiler/passes/padded_products.py`."""
    shapes = {"input_shape": [2, channels, 8, 8], "kernel_shape": [16, channels, 1, 1]}
    signature = conv(dtype, padding=0, bias=False, **shapes)
    arguments = [followed_by_nan(each) for each in sample(signature)]
    launch = get_launchable(signature)
    for _ in range(2):
        check(launch(*arguments), signature, arguments)


def followed_by_nan(tensor: Any) -> Any:
    """A copy of a dense tensor in memory that goes on with NaN."""
    memory = torch.full((tensor.numel() + 2**16,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    return memory[: tensor.numel()].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("number", range(len(SIGNATURES)))
def test_results_are_those_of_irees_runtime(number: int, dtype: str):
    """The same code on the same numbers: bit by bit."""
    signature = SIGNATURES[number](dtype)
    arguments = sample(signature, 4)
    through_iree = Launchable(signature.launch, WithoutProgram(signature))
    results = each_of(get_launchable(signature)(*arguments)), each_of(through_iree(*arguments))
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)


def test_a_kernel_without_a_program_is_launched_through_iree(caplog: pytest.LogCaptureFixture):
    signature = conv()
    launch, arguments = Launchable(signature.launch, WithoutProgram(signature)), sample(signature)
    with caplog.at_level(logging.DEBUG, "dispatch_profiler.boo"):
        for _ in range(2):
            check(launch(*arguments), signature, arguments)

    assert "compiled without a launch program" in caplog.text


@pytest.mark.parametrize("make", [conv, norm])
def test_results_are_written_to_out(make: Callable[[], Any]):
    signature = make()
    launch, arguments = get_launchable(signature), sample(signature)
    outs = tuple(torch.empty_like(each) for each in each_of(launch(*arguments)))
    for seed in (1, 2):
        arguments = sample(signature, seed)
        out = outs if len(outs) > 1 else outs[0]
        versions = [each._version for each in outs]

        assert launch(*arguments, out=out) is out

        check(out, signature, arguments)
        assert all(each._version > before for each, before in zip(outs, versions, strict=True))


def test_misaligned_strided_and_aliased_arguments_are_copied():
    signature = gemm()
    launch, (a, b) = get_launchable(signature), sample(signature)
    memory = torch.empty(a.numel() + 1, device="cuda")
    misaligned = memory[1:].view(a.shape).copy_(a)
    strided = torch.empty(*a.t().shape, device="cuda").t().copy_(a)
    wide = torch.empty(64, 96, device="cuda")
    wide_out = wide[:, ::2]
    for _ in range(2):
        check(launch(misaligned, b), signature, (a, b))
        check(launch(strided, b), signature, (a, b))
        check(launch(-a.neg(), b), signature, (a, b))
        assert launch(a, b, out=wide_out) is wide_out
        check(wide_out, signature, (a, b))
    square = GEMMSignature(a_shape=(64, 64), b_shape=(64, 64), dtype="f32")
    a, b = sample(square)
    in_place = a.clone()
    for _ in range(2):
        in_place.copy_(a)
        get_launchable(square)(in_place, b, out=in_place)
        check(in_place, square, (a, b))


def test_arguments_that_do_not_fit_are_rejected_and_later_launches_work():
    signature = gemm()
    launch, (a, b) = get_launchable(signature), sample(signature)
    for _ in range(2):
        for bad in [(a, b.cpu()), (a.half(), b), (a[:3], b), (a,)]:
            with pytest.raises(UsageError):
                launch(*bad)
        with pytest.raises(UsageError, match="requires grad"):
            launch(a, b, out=torch.empty(64, 48, device="cuda", requires_grad=True))
        check(launch(a, b), signature, (a, b))


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [conv, nhwc, norm])
@pytest.mark.parametrize("is_first", [True, False])
def test_launches_are_on_the_current_stream_and_do_not_wait(make: Callable[[], Any], is_first: bool):
    """The arguments are written at the end of 0.3 s, on the same stream; torch reads the result there."""
    signature = make()
    get_launchable(signature)(*sample(signature))  # compiled
    launch = Launchable(
        signature.launch, OperationKernels(signature.operation, signature.func_name, launch_settings())
    )
    if not is_first:
        launch(*sample(signature))
    wanted = sample(signature, 3)
    arguments = [torch.zeros_like(each) for each in wanted]
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            for each, values in zip(arguments, wanted, strict=True):
                each.copy_(values, non_blocking=True)
            results = launch(*arguments)
            copies = tuple(each.clone() for each in each_of(results))
            for each in arguments:
                each.zero_()
            assert is_first or not stream.query()
        stream.synchronize()
        check(copies, signature, wanted)


@pytest.mark.parametrize("make", [conv, nhwc, norm, gemm])
def test_launches_are_captured_in_a_cuda_graph(make: Callable[[], Any]):
    """With the temporary memory; a replay computes the results of what the arguments then hold."""
    signature = make()
    launch, arguments = get_launchable(signature), sample(signature)
    launch(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*arguments)
        results = launch(*arguments)
    for seed in (5, 6):
        for each, values in zip(arguments, sample(signature, seed), strict=True):
            each.copy_(values)
        graph.replay()
        check(results, signature, arguments)


def test_the_first_launch_of_a_process_may_be_captured():
    """Its kernel is in the cache, but not yet loaded."""
    signature = conv(kernel_shape=[8, 8, 3, 3])
    kernel_of(signature)
    kernels = OperationKernels(signature.operation, signature.func_name, launch_settings())
    launch, arguments = Launchable(signature.launch, kernels), sample(signature)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = launch(*arguments)
    graph.replay()
    check(results, signature, arguments)


# -- threads, processes, memory --------------------------------------------------------------------


def test_threads_launch_at_once_on_streams_of_their_own():
    signature = nhwc()
    launch = get_launchable(signature)
    launch(*sample(signature))

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            arguments = [sample(signature, seed + turn) for turn in range(4)]
            found = [(launch(*each), each) for each in itertools.islice(itertools.cycle(arguments), 100)]
            torch.cuda.current_stream().synchronize()
            for result, each in found:
                check(result, signature, each)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(0, 80, 10)))


def test_a_thread_that_has_not_used_cuda_can_launch():
    signature = gemm()
    launch, arguments = get_launchable(signature), sample(signature)
    out = torch.empty_like(launch(*arguments)).zero_()
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: launch(*arguments, out=out))
    thread.start()
    thread.join()
    check(out, signature, arguments)


def test_launches_keep_no_memory():
    signature = nhwc()
    launch, arguments = get_launchable(signature), sample(signature)
    launch(*arguments)
    assert program_of(launch).transient_bytes > 0
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        launch(*arguments)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_forked_process_raises_target_error():
    signature = gemm()
    launch, arguments = get_launchable(signature), sample(signature)
    out = launch(*arguments)
    reader, writer = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            launch(*arguments, out=out)
            writer.send("launched")
        except TargetError as error:
            writer.send(f"TargetError {error}")
        except BaseException as error:
            writer.send(repr(error))
        os._exit(0)
    os.waitpid(pid, 0)
    assert "TargetError torch used CUDA before this process was forked" in reader.recv()
    check(launch(*arguments), signature, arguments)


# -- errors ----------------------------------------------------------------------------------------


def test_errors_have_the_name_that_cuda_gives_them():
    signature = gemm()
    kernel, (a, b) = kernel_of(signature), sample(signature)
    out = torch.empty(64, 48, device="cuda")
    with pytest.raises(RunError, match="CUDA_ERROR_NOT_FOUND"):
        load(kernel, entry="no_such_kernel")
    with pytest.raises(RunError, match="CUDA_ERROR_INVALID_VALUE"):
        load(kernel, shared_bytes=2**18)
    broken = replace(kernel, vmfb=kernel.vmfb.replace(b".visible .entry", b".visible .wrong"))
    with pytest.raises(RunError, match="CUDA_ERROR_INVALID_PTX"):
        load(broken)
    too_many = load(kernel, block=(1024, 1, 1))
    with pytest.raises(RunError, match="launching test failed: CUDA_ERROR_INVALID_VALUE"):
        memory = torch.empty(max(1, too_many.transient_bytes), dtype=torch.uint8, device="cuda")
        too_many.launch([each.data_ptr() for each in (a, b, out, memory)], 0)
    check(get_launchable(signature)(a, b), signature, (a, b))


def test_a_device_that_is_not_there_is_an_error():
    signature = gemm()
    with pytest.raises(TargetError, match="no such GPU"):
        OperationKernels(signature.operation, signature.func_name, launch_settings()).kernel(
            DeviceUri("cuda", "99")
        )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_launch_on_another_device_than_the_current_one():
    signature = nhwc()
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        arguments = signature.get_sample_args(device=device, seed=0)
        result = get_launchable(signature)(*arguments)
        assert str(result.device) == device
        check(result, signature, arguments)
