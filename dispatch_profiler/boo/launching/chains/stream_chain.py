"""Chains on a CUDA device: one call adds all launches to torch's current stream.

Separate launches would take the host longer than most kernels take the GPU, since each launch checks its tensors and
allocates its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from dispatch_profiler.boo.launching.arrays import torch_streams
from dispatch_profiler.boo.launching.arrays.torch_fast import allocation
from dispatch_profiler.boo.launching.chains.chain_layout import ChainLayout
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.runtime.cuda_launch import BufferPlace, CudaProgram, CudaSequence, offsets_of


class StreamPlan:
    """A chain that was prepared for a CUDA device: its kernels, and the places of their arguments in memory.

    Intermediate results and temporary memory share one allocation, which the stream uses in order.
    """

    def __init__(self, layout: ChainLayout, programs: Sequence[CudaProgram], device: torch.device) -> None:
        """`programs` has the kernel of each step, on `device`."""
        slots, sizes = layout.slots()
        offsets, end = offsets_of(sizes)
        # A call passes the addresses of the inputs, of the allocation, and of the outputs, in this order.
        inputs = layout.inputs
        places = {value: BufferPlace(value) for value in range(inputs)}
        places |= {value: BufferPlace(inputs, offsets[slot]) for value, slot in slots.items()}
        places |= {value: BufferPlace(inputs + 1 + at) for at, value in enumerate(layout.outputs)}
        arguments = [[places[value] for value, _ in each] for each in layout.kernel_arguments()]
        self._sequence = CudaSequence(list(zip(programs, arguments, strict=True)), BufferPlace(inputs, end))
        transient = max(each.transient_bytes for each in programs)
        self._memory = partial(torch.empty, max(1, end + transient), dtype=torch.uint8, device=device)
        self._outputs = [allocation(each, device) for each in layout.output_specs]
        self._index = torch_streams.index_of(device)

    def run(self, inputs: Sequence[int]) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses. Raises RunError."""
        memory = self._memory()  # free for the next user of this stream when this function returns
        outputs = [new() for new in self._outputs]
        addresses = [*inputs, memory.data_ptr(), *[each.data_ptr() for each in outputs]]
        self._sequence.launch(addresses, torch_streams.current_stream(self._index))
        return tuple(outputs)
