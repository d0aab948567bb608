"""External kernels: what a dispatch needs in order to launch one."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.operations import ElementType


@dataclass(frozen=True)
class Launch:
    """How `hal.dispatch.extern` starts a kernel.

    The kernel takes a pointer for each operand of the operation, one for what it writes, and one for
    each entry of `scratch`, in this order; sizes in bytes. It writes `shape` of `type`: the result, or
    for a split reduction the sums of each slice, which IREE's own code then adds up.
    """

    entry: str
    workgroups: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    shape: tuple[int, ...]
    type: ElementType
    scratch: tuple[int, ...] = ()

    @property
    def mlir(self) -> str:
        """`tensor<4x256x128xf32>`: what it writes."""
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.type.name}>"


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel: its name among our sources, constants and options; nothing of Triton itself.

    `types` are those of the pointers it takes, by parameter; a parameter that is not among them is a
    constant.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool | str | None], ...]
    warps: int
    stages: int


@dataclass(frozen=True)
class KernelObject:
    """A compiled kernel: a file of PTX or machine code, and the resources that it needs."""

    path: str
    target_arch: str
    shared_bytes: int
