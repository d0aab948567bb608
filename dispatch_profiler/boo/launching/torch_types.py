"""torch's element types, the precision of its products, and the kinds of torch tensors that launches distinguish."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from dispatch_profiler.profiler.providers.torch_library import TYPES as TYPES

Tensor = Any
#: torch as Any, because parts of torch are untyped.
_torch: Any = torch
to_dlpack = _torch.utils.dlpack.to_dlpack

NAMES = {dtype: name for name, dtype in TYPES.items()}
#: Element types that DLPack passes as they are.
SHARED = frozenset(TYPES) - {"f8E4M3FN", "f8E5M2"}
#: Classes of tensors that have memory of their own. Tensors of other classes may wrap several tensors, or none.
PLAIN = (torch.Tensor, torch.nn.Parameter)  # not a set, which Dynamo of torch 2.6 cannot trace
#: The tag of operators that compilers leave out of CUDA graphs. These operators keep tensors for later calls, such as a
#: permuted weight, which must not be in the memory of a graph.
OUTSIDE_OF_CUDA_GRAPHS: tuple[Any, ...] = (
    (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
)
#: The tag of operators whose inputs compilers must pass with the strides of the graph.
EXACT_STRIDES: Any = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)

#: In which precision torch may compute products of f32 -> the argument of `torch.set_float32_matmul_precision`.
_PRECISIONS = {"bf16": "medium", "tf32": "high"}


def product_precision() -> str:
    """The precision of products of f32: `highest`, `high` or `medium`, as in `torch.set_float32_matmul_precision`.

    From torch 2.9 on, each backend has its own. torch's getter then warns, or raises an error for backends that were set
    one by one.
    """
    backends: Any = (_torch.backends.cuda.matmul, getattr(_torch.backends.mkldnn, "matmul", None))
    own = [getattr(each, "fp32_precision", None) for each in backends]
    if None in own:
        return str(torch.get_float32_matmul_precision())
    return next((name for each, name in _PRECISIONS.items() if each in own), "highest")


def note_write(tensor: Tensor) -> None:
    """Tell autograd that the elements of `tensor` changed, in case it has saved the tensor for a backward pass."""
    if not tensor.is_inference():
        _torch.autograd.graph.increment_version(tensor)
