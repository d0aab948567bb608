"""External kernels: their launch, and their source or object."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.operations import ElementType, Tensor


@dataclass(frozen=True)
class Launch:
    """How `hal.dispatch.extern` launches a kernel.

    The kernel takes a pointer for each operand, one for its output, and one for each entry of `scratch`
    (sizes in bytes), in this order. If the operation has several results, the kernel also takes a pointer for
    each of `more`, the results after the first, before the scratch memory. Its output has `shape` and `type`:
    the result, or for a split reduction the sums of each slice, which IREE's code then adds up.
    """

    entry: str
    workgroups: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    shape: tuple[int, ...]
    type: ElementType
    scratch: tuple[int, ...] = ()
    more: tuple[Tensor, ...] = ()

    @property
    def mlir(self) -> str:
        """The type of the output: `tensor<4x256x128xf32>`."""
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.type.name}>"


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel: its name in this package's sources, constants and options, without any Triton object.

    `types` has the types of its pointers, by parameter; all other parameters are constants. The pointers of
    `operands`, which follow each other among `types`, are one parameter of this name, a tuple. With `l1`, its
    asynchronous copies also keep the loaded data in the L1 cache. A launch has `programs` workgroups. If
    `counters` is not 0, the kernel's pointer `arrivals` is not passed: it points to `counters` counters of
    the module, which are 0 when the module is loaded.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool | str | None], ...]
    warps: int
    stages: int
    operands: tuple[str, ...] = ()
    l1: bool = False
    programs: int = 1
    counters: int = 0


@dataclass(frozen=True)
class KernelObject:
    """A compiled kernel: a file of PTX or machine code, and the resources that it needs."""

    path: str
    target_arch: str
    shared_bytes: int
