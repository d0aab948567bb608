"""Computes runs of regions with torch's operators: as a reference, and if a kernel cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn import functional

from dispatch_profiler.boo.fusion.programs.operators import evaluate
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.roots._base import root_family
from dispatch_profiler.boo.fusion.spec import ABSENT, OperandSource, RegionSpec, RunSpec
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.boo.weights.derivations import BatchNorm
from dispatch_profiler.operations.epilogue_steps import OperandSpan

_functional: Any = functional


def compute(spec: RunSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a run, with the memory format of its spec. Inputs that the run updates are written to."""
    values = list(inputs)
    for region, taken in spec.steps:
        values += compute_region(region, [values[each] for each in taken])
    for result, updated in spec.in_place.items():
        inputs[updated].copy_(values[result])
    outputs = (values[each] for each in spec.outputs)
    return [_stored(each, reading) for each, (_, reading, _) in zip(outputs, spec.results, strict=True)]


def compute_region(spec: RegionSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a region, with torch's shapes."""
    operation = spec.operation
    if isinstance(operation, OperatorProgram):
        results = evaluate(operation, inputs)
        wanted = (TYPES[each.type] for each in operation.outputs)
        return [each.to(dtype) for each, dtype in zip(results, wanted, strict=True)]
    family, contraction = root_family(operation), operation.contraction
    operands = [_operand(source, inputs, family.has_images) for source in spec.sources]
    count = len(operands) if contraction is None else 2
    results = family.compute(spec, operands[:count])
    if contraction is not None:
        # As in torch, channels are the second axis of an image, but the last axis of rows.
        (sums,) = results
        axis = 1 if family.has_images else sums.dim() - 1
        for step, place in contraction.epilogue.places():
            given = [_along(each, step.kind.spans, axis, sums) for each in operands[count:][place]]
            sums = _STEPS[step.name](sums, step, *given)
        results = [sums]
    return [each.reshape(shape) for each, (shape, _) in zip(results, spec.results, strict=True)]


def _operand(source: OperandSource, inputs: Sequence[Tensor], are_images: bool) -> Tensor:
    """An operand with torch's order of axes, or with channels last unless operands `are_images`."""
    given = [None if at == ABSENT else inputs[at] for at in source.inputs]
    if source.reading in ("scale", "shift"):
        return BatchNorm.of(given, source.eps).vector
    if source.reading == "channels" and not are_images:
        return given[0].permute(0, *range(2, given[0].dim()), 1)  # type: ignore[union-attr]
    return given[0]


def _along(operand: Tensor, spans: OperandSpan, axis: int, of: Tensor) -> Tensor:
    """An operand that broadcasts against `of`; the channels are its axis `axis`."""
    if spans is OperandSpan.ELEMENTS:
        return operand.reshape(of.shape)
    if spans is OperandSpan.ROWS:
        return operand.reshape((*of.shape[:-1], 1))
    return operand.reshape([-1 if at == axis else 1 for at in range(of.dim())])


def _stored(tensor: Tensor, reading: str) -> Tensor:
    if reading == "rows":
        return tensor.contiguous()
    axes = tensor.dim()
    dense = tensor.permute(0, *range(2, axes), 1).contiguous()
    return dense.permute(0, axes - 1, *range(1, axes - 1))


_STEPS: dict[str, Callable[..., Tensor]] = {
    "bias": lambda x, step, bias: x + bias,
    "residual": lambda x, step, residual: x.add(residual, alpha=step.parameters[0]),
    "scale": lambda x, step: x * step.parameters[0],
    **dict.fromkeys(("channel_scale", "row_scale"), lambda x, step, scale: x * scale),
    "scale_shift": lambda x, step, scale, shift: x * scale + shift,
    "relu": lambda x, step: x.relu(),
    "relu6": lambda x, step: _functional.hardtanh(x, 0.0, 6.0),
    "clamp": lambda x, step: x.clamp(*step.parameters),
    "leaky_relu": lambda x, step: _functional.leaky_relu(x, *step.parameters),
    "hardswish": lambda x, step: _functional.hardswish(x),
    "hardsigmoid": lambda x, step: _functional.hardsigmoid(x),
    "gelu": lambda x, step: _functional.gelu(x),
    "gelu_tanh": lambda x, step: _functional.gelu(x, approximate="tanh"),
    "silu": lambda x, step: _functional.silu(x),
    "sigmoid": lambda x, step: x.sigmoid(),
    "tanh": lambda x, step: x.tanh(),
}
