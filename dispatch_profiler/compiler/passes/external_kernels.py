"""External kernels in a module: inserting their objects, and verifying that they are launched.

The generated source has the launch of each kernel. The object and its shared memory, which only the
kernel's compiler knows, are set on `hal.dispatch.extern` before the front end runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from iree.compiler import ir

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, KernelBinary, Kernels
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.configurations import GpuLimits, KernelObject, KernelSource, Launch
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.outside_causes import outside_cause

_EXTERN = "hal.dispatch.extern"
#: Bytes of PTX or machine code: the largest libraries of kernels ship less for one architecture.
_LARGEST_OBJECT = 2**28


def make_kernels(
    dispatches: Sequence[Dispatch], gpu: GpuLimits | None
) -> tuple[dict[str, tuple[KernelBinary, ...]], dict[str, BuildOutcome]]:
    """(dispatch -> kernels, dispatch -> failure) for the dispatches that launch external kernels."""
    kernels: dict[str, tuple[KernelBinary, ...]] = {}
    failed: dict[str, BuildOutcome] = {}
    for dispatch in dispatches:
        wanted = dispatch.configuration.kernels(dispatch.operation)
        if not wanted or gpu is None:
            continue
        launches = dispatch.configuration.launches(dispatch.operation)
        try:
            kernels[dispatch.name] = tuple(
                _checked(_load(kernel, launch, gpu), launch, gpu)
                for kernel, launch in zip(wanted, launches, strict=True)
            )
        except BuildError as error:
            is_deterministic = error.is_deterministic and not outside_cause(error.message)
            failed[dispatch.name] = BuildOutcome(
                State.NOT_COMPILED, error.message, is_deterministic=is_deterministic
            )
        except MissingDependency as error:
            reason = f"{error.message}: {error.hint}"
            failed[dispatch.name] = BuildOutcome(
                State.NOT_COMPILED, reason, is_transient=True, is_deterministic=False
            )
    return kernels, failed


def _load(kernel: KernelSource | KernelObject, launch: Launch, gpu: GpuLimits) -> KernelBinary:
    if isinstance(kernel, KernelSource):
        # It takes a second to import, and is optional.
        from dispatch_profiler.compiler.cuda.triton import compile_kernel

        return compile_kernel(kernel, gpu.device_capability)
    try:
        data = read_bounded(Path(kernel.path), _LARGEST_OBJECT)
    except UsageError as error:
        raise BuildError(error.message) from error
    return KernelBinary(
        launch.entry, data, kernel.shared_bytes, f"{Path(kernel.path).name} for {kernel.target_arch}"
    )


def _checked(kernel: KernelBinary, launch: Launch, gpu: GpuLimits) -> KernelBinary:
    """Raise BuildError unless the device has the kernel's resources and the object has the entry point."""
    if kernel.shared_bytes > gpu.device_shared_bytes:
        raise BuildError(
            f"the kernel needs {kernel.shared_bytes} B of shared memory, but {gpu.device_arch} has "
            f"{gpu.device_shared_bytes}: use fewer stages or a smaller tile"
        )
    # Triton's scratch memory is the last pointer but one: the last is the profiler's.
    scratch = launch.scratch[-2] if len(launch.scratch) > 1 else 0
    if kernel.scratch_bytes > scratch:
        raise BuildError(
            f"the kernel needs {kernel.scratch_bytes} B of scratch memory, but its launch gives {scratch}: this release of Triton creates descriptors differently"
        )
    if _is_ptx(kernel.data) and not re.search(
        rb"\.entry\s+" + re.escape(launch.entry.encode()) + rb"\b", kernel.data
    ):
        names = ", ".join(found.decode() for found in re.findall(rb"\.entry\s+([\w$]+)", kernel.data))
        raise BuildError(f"the object has no kernel {launch.entry}; available: {names or 'none'}")
    return kernel


def _is_ptx(data: bytes) -> bool:
    return b"\0" not in data.rstrip(b"\0")


def insert_kernels(source: IrModule, kernels: Kernels) -> None:
    """Set objects and shared memory on the launches in `source`, before the front end runs."""
    functions = source.symbols("func.func")
    for name, launched in kernels.items():
        by_entry = {each.entry: each for each in launched}
        for op in operations_in(functions[name]):
            if op.name == _EXTERN:
                kernel = by_entry[ir.StringAttr(op.attributes["export_name"]).value]
                with op.context:
                    op.attributes["target_objects"] = ir.Attribute.parse(f"[[{_object(name, kernel)}]]")
                    op.attributes["workgroup_local_memory"] = ir.Attribute.parse(
                        f"{kernel.shared_bytes} : index"
                    )


def _object(name: str, kernel: KernelBinary) -> str:
    suffix = "ptx" if _is_ptx(kernel.data) else "cubin"
    data = f'dense<"0x{kernel.data.hex()}"> : vector<{len(kernel.data)}xi8>'
    return f'#hal.executable.object<{{path = "{name}.{kernel.entry}.{suffix}", data = {data}}}>'


def verify_external_kernels(module: IrModule, kernels: Kernels) -> dict[str, BuildOutcome]:
    """Outcomes of the dispatches of `kernels`: whether each launches its own kernels."""
    return {name: _verified(module, name, launched) for name, launched in kernels.items()}


def _verified(module: IrModule, name: str, kernels: Sequence[KernelBinary]) -> BuildOutcome:
    texts = [str(executable) for executable in module.executables_of(name).values()]
    for kernel in kernels:
        if not any(_launches(text, name, kernel) for text in texts):
            return BuildOutcome(
                State.NOT_APPLIED, f"the compiler's IR has no launch of the external kernel {kernel.entry}"
            )
    return BuildOutcome(State.COMPILED, applied="; ".join(kernel.origin for kernel in kernels))


def _launches(executable: str, name: str, kernel: KernelBinary) -> bool:
    """Whether an executable of the dispatch `name` has the kernel and its shared memory."""
    shared = f"workgroup_local_memory = {kernel.shared_bytes}"
    return f'path = "{name}.{kernel.entry}.' in executable and (
        shared in executable or not kernel.shared_bytes
    )
