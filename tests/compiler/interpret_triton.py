"""Runs Triton kernels in Triton's interpreter: `python interpret_triton.py CASES RESULTS`, both pickles.

A process of its own, because TRITON_INTERPRET counts when Triton is imported. CASES is a list of
(dispatch, inputs); RESULTS gets what the kernel wrote for each, as an array of the type it was given.
"""

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import interpreter_builder

from dispatch_profiler.compiler.cuda.triton import _LANGUAGE, kernel_sources
from dispatch_profiler.templates import triton_kernels

# It would compute each sum and product of integers a second time, in 64 bits, and ignore what it finds: its assertions
# count only with `debug`.
interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)

_VIEWS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.int8, torch.float8_e4m3fn),
}


def tensor_of(array):
    view, type_ = _VIEWS.get(array.dtype, (None, None))
    return torch.from_numpy(array.copy()) if view is None else torch.from_numpy(array.view(view)).view(type_)


def array_of(tensor, dtype):
    view, _ = _VIEWS.get(dtype, (None, None))
    return tensor.numpy() if view is None else tensor.view(getattr(torch, view.__name__)).numpy().view(dtype)


def check_only_first_tile(result, constants):
    """Slices of a tile have consecutive numbers, so that those that wait for each other start together."""
    done = ~result.isnan()
    first = (slice(constants["TILE_M"]), slice(constants["TILE_N"]))
    assert done[first].all()
    assert done.sum() == done[first].numel()


def interpret(dispatch, inputs):
    """What the kernel of `dispatch` writes; NaN or -1 where it writes nothing."""
    source = dispatch.configuration.kernel(dispatch.operation)
    launch = dispatch.configuration.launch(dispatch.operation)
    function = getattr(kernel_sources(), source.kernel)
    constants = dict(source.constants)
    constants["ACCUMULATOR"] = getattr(tl, _LANGUAGE[constants["ACCUMULATOR"]])
    roles = [tensor.name for tensor in dispatch.operation.operands]
    taken = {name: tensor_of(inputs[roles.index(name)]) for name, _ in source.types if name in roles}
    if "operands" in function.arg_names:
        taken["operands"] = tuple(taken.pop(name) for name in source.operands)
    own = {name for name, _ in source.types} & {"partial", "arrivals"}
    first, *others = (name for name, _ in source.types if name not in {*roles, *own})
    outputs = {first: (launch.shape, launch.type)}
    outputs |= dict(zip(others, ((each.shape, each.type) for each in launch.more), strict=True))
    written = {
        name: tensor_of(np.full(shape, -1 if type_.is_integer else np.nan, type_.dtype))
        for name, (shape, type_) in outputs.items()
    }
    if own:
        taken["partial"] = torch.full((launch.scratch[0] // 4,), np.nan)
        taken["arrivals"] = torch.zeros(source.counters, dtype=torch.int32)
        # The interpreter runs one workgroup after another, so none may wait: the second launch finds all sums.
        triton_kernels._arrive = lambda *_: None
        function[(constants["JOINED"],)](**taken, **written, **constants)
        function[(constants["JOINED"],)](**taken, **written, **constants)
        check_only_first_tile(written["result"], constants)
        function[launch.workgroups](**taken, **written, **constants)
    function[launch.workgroups](**taken, **written, **constants)
    found = [array_of(written[name], type_.dtype) for name, (_, type_) in outputs.items()]
    for source, launch in list(zip(*launched(dispatch), strict=True))[1:]:
        found = interpret_next(source, launch, found)
    return found if len(found) > 1 else found[0]


def launched(dispatch):
    """The kernels of a dispatch, and their launches."""
    configuration, operation = dispatch.configuration, dispatch.operation
    return configuration.kernels(operation), configuration.launches(operation)


def interpret_next(source, launch, inputs):
    """What a kernel that takes the results of the one before it writes."""
    constants = dict(source.constants)
    constants["ACCUMULATOR"] = getattr(tl, _LANGUAGE[constants["ACCUMULATOR"]])
    names = [name for name, _ in source.types]
    taken = dict(zip(names, map(tensor_of, inputs), strict=False))
    outputs = [(launch.shape, launch.type), *((each.shape, each.type) for each in launch.more)]
    written = dict(
        zip(
            names[len(inputs) :],
            (tensor_of(np.full(shape, np.nan, t.dtype)) for shape, t in outputs),
            strict=True,
        )
    )
    getattr(kernel_sources(), source.kernel)[launch.workgroups](**taken, **written, **constants)
    return [array_of(tensor, t.dtype) for tensor, (_, t) in zip(written.values(), outputs, strict=True)]


if __name__ == "__main__":
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    results = [interpret(*case) for case in cases]
    Path(sys.argv[2]).write_bytes(pickle.dumps(results))
