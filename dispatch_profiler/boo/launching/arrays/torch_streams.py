"""Launches on torch's current stream of a CUDA device. Like torch's operators, they do not wait for the device.

torch also allocates temporary memory, so that a stream uses it in order and a CUDA graph keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import LaunchSpec
from dispatch_profiler.boo.launching._base import FastLaunch
from dispatch_profiler.boo.launching.arrays.torch_fast import allocation, expected_of, usable_outs
from dispatch_profiler.boo.launching.host.host_launch import address_check, argument_order
from dispatch_profiler.boo.launching.torch_types import PLAIN, note_write
from dispatch_profiler.runtime.cuda_launch import CudaProgram

_torch: Any = torch


def _public_stream(index: int) -> int:
    return int(_torch.cuda.current_stream(index).cuda_stream)


#: Index of a device -> handle of the current stream. torch's private function takes a tenth of the public one's time.
current_stream: Callable[[int], int] = getattr(_torch._C, "_cuda_getCurrentRawStream", _public_stream)


def index_of(device: torch.device) -> int:
    """The index as in `Tensor.get_device`: -1 for the CPU, which stands in for a GPU in tests."""
    return -1 if device.type == "cpu" else device.index


def on_stream(program: CudaProgram, device: torch.device) -> Callable[[Sequence[int]], None]:
    """A function that launches `program` on the current stream, given the addresses of operands and results.

    The function raises RunError.
    """
    size, add, stream_of, index = program.transient_bytes, program.launch, current_stream, index_of(device)
    if not size:
        return lambda addresses: add(addresses, stream_of(index))
    allocate = partial(torch.empty, size, dtype=torch.uint8, device=device)

    def launch(addresses: Sequence[int]) -> None:
        memory = allocate()  # free for the next user of this stream when this function returns
        add([*addresses, memory.data_ptr()], stream_of(index))

    return launch


def stream_launch(program: CudaProgram, spec: LaunchSpec, device: torch.device) -> FastLaunch:
    """A fast launch, for tensors that need neither a copy nor an error message."""
    expected, written, index = expected_of(spec.arguments), expected_of(spec.results), index_of(device)
    allocate = [allocation(each, device) for each in spec.results]
    order, start, are_usable = argument_order(spec), on_stream(program, device), address_check(spec)
    is_ordered, is_single, count = order == list(range(len(order))), len(written) == 1, len(expected)
    plain, misaligned = PLAIN, ALIGNMENT - 1

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        if len(arguments) != count:
            return None
        addresses, bits = [], 0
        try:
            for tensor, (shape, dtype) in zip(arguments, expected, strict=True):
                if (
                    type(tensor) not in plain
                    or tensor.dtype is not dtype
                    or tensor.shape != shape
                    or tensor.get_device() != index
                    or not tensor.is_contiguous()
                    or tensor.is_neg()
                ):
                    return None
                address = tensor.data_ptr()
                bits |= address
                addresses.append(address)
            returned = [new() for new in allocate] if out is None else usable_outs(out, written, index)
            if returned is None or bits & misaligned:
                return None
            for tensor in returned:
                addresses.append(tensor.data_ptr())
        except (RuntimeError, TypeError):
            return None
        # New results share no memory with anything.
        if out is not None and not are_usable(addresses):
            return None
        start(addresses if is_ordered else [addresses[number] for number in order])
        if out is not None:
            for tensor in returned:
                note_write(tensor)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch
