"""Kernels keep subnormal numbers, as numpy does, or flush them if asked; the mode of the calling thread is left alone."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import platform

import numpy as np
import pytest

from dispatch_profiler.compiler import IreeCompiler, launch_key, launch_request
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.passes.subnormals import keep_subnormals
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.operations import BiasBackward, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import CpuTarget, parse_target

pytestmark = pytest.mark.works_on_ir

F64 = ElementTypes("f64", "f64", "f64")
CASES = {
    "product": Dispatch(Matmul(5, 7, 6), Default()),
    "tiles": Dispatch(Matmul(16, 32, 16), CpuTiles((8, 16), (4, 16, 4))),
    "epilogue": Dispatch(Matmul(4, 8, 4, epilogue=Epilogue.parse("bias+relu")), Default()),
    "f64": Dispatch(Matmul(4, 4, 4, F64), Default()),
    "sum": Dispatch(BiasBackward(3, 8, 2), Default()),
}


@functools.cache
def built(name: str, flushes: bool) -> bytes:
    dispatch = CASES[name]
    return IreeCompiler().build(launch_request(dispatch, CpuTarget(flushes=flushes))).verify


def operands(operation: Operation) -> list[np.ndarray]:
    """The first operand is subnormal, the others are ones, and a bias is zero."""
    found = []
    for at, each in enumerate(operation.operands):
        tiny = float(each.type.finfo().tiny) / 1024
        found.append(np.full(each.shape, (tiny, 1.0, 0.0)[at], each.type.dtype))
    return found


def computed(name: str, device: str, *, flushes: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel computes, and the reference in float64."""
    dispatch = CASES[name]
    kernels, given = open_kernels(device, None), operands(dispatch.operation)
    call = kernels.load(built(name, flushes)).bind(dispatch.name, kernels.put(dispatch.operation, given))
    return call.run()[0].astype(np.float64), dispatch.operation.reference(given)[0].expected


@pytest.mark.parametrize(
    ("name", "device"),
    [*((name, "local-task") for name in CASES), ("product", "local-sync")],
)
def test_results_are_those_of_numpy(name: str, device: str) -> None:
    found, expected = computed(name, device)
    assert (expected > 0).all() and (
        expected < np.finfo(np.float32 if name != "f64" else np.float64).tiny
    ).all()
    # A subnormal number has fewer bits: half of the smallest one is the unit roundoff.
    step = float(CASES[name].operation.results[0].type.finfo().smallest_subnormal)
    assert np.abs(found - expected).max() <= step * 8


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_they_are_flushed_if_asked(device: str) -> None:
    """The check above can fail."""
    found, expected = computed("product", device, flushes=True)
    assert (expected > 0).all() and not found.any()


def mode() -> int:
    """The bits of this thread's mode that flush subnormal numbers."""
    environment = (ctypes.c_uint32 * 16)()
    ctypes.CDLL(ctypes.util.find_library("m")).fegetenv(environment)
    return environment[7] & 0x8040 if platform.machine() == "x86_64" else environment[0] & (1 << 24)


@pytest.mark.slow
def test_the_mode_of_the_caller_is_left_alone() -> None:
    torch = pytest.importorskip("torch")
    assert mode() == 0
    for name in CASES:
        computed(name, "local-sync")
        assert mode() == 0
    dispatch = CASES["product"]
    given = operands(dispatch.operation)
    kernels = open_kernels("local-sync", None)
    call = kernels.load(built("product", False)).bind(dispatch.name, kernels.put(dispatch.operation, given))
    assert torch.set_flush_denormal(True)
    try:
        flushing = mode()
        assert flushing
        (found,) = call.run()
        assert mode() == flushing
    finally:
        torch.set_flush_denormal(False)
    assert found.all()  # as documented, whatever the mode of the caller is


def test_a_flushing_kernel_has_a_key_of_its_own() -> None:
    keys = {launch_key(CASES["product"], CpuTarget(flushes=each), IreeCompiler()) for each in (True, False)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("target", "instruction"),
    [("llvm-cpu:znver4", "ldmxcsr"), ("llvm-cpu:neoverse-v2", "msr fpcr"),
     ("cuda:sm_80", "")],
)  # fmt: skip
def test_kernels_of_every_architecture_compile(target: str, instruction: str) -> None:
    phases, flags = InProcess(), parse_target(target).compile_flags
    dispatch = CASES["product"]
    module = phases.parse(render_module(dispatch.operation, [dispatch]), flags)
    module = phases.advance(module, flags, stop="executable-targets")
    before = module.text()
    keep_subnormals(module)
    after = module.text()
    assert after.count("llvm.inline_asm") == (before.count("llvm.return") + 1 if instruction else 0)
    assert instruction in after
    assert phases.vmfb(module, flags, "executable-targets")
