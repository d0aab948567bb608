"""torch's element types, and what launches know of its tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from dispatch_profiler.profiler.providers.torch_library import TYPES as TYPES

Tensor = Any
#: torch as Any, because parts of it are untyped.
_torch: Any = torch
to_dlpack = _torch.utils.dlpack.to_dlpack

NAMES = {dtype: name for name, dtype in TYPES.items()}
#: Types that DLPack passes without help.
SHARED = frozenset(TYPES) - {"f8E4M3FN"}
#: Classes of tensors that have memory of their own. Others may stand for several tensors, or for none.
PLAIN = (torch.Tensor, torch.nn.Parameter)  # no set, which Dynamo of torch 2.6 cannot trace
#: The tag of operators that compilers leave out of CUDA graphs. What they keep for later calls, such as a permuted weight,
#: must not be in the memory of a graph.
OUTSIDE_OF_CUDA_GRAPHS: tuple[Any, ...] = (
    (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
)


def note_write(tensor: Tensor) -> None:
    """Let autograd know that the elements of `tensor` changed, in case it has saved them for a backward pass."""
    if not tensor.is_inference():
        _torch.autograd.graph.increment_version(tensor)
