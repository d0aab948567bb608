"""Operations and configurations -> MLIR text, through the templates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from dispatch_profiler.configurations import Configuration, Kernel, Reduction, packed_by
from dispatch_profiler.configurations.cpu.plans.vectors import error_function, exponential
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.operations import Operation

if TYPE_CHECKING:
    import jinja2

#: A function as the templates write it: its body without the last line, and the value that the last line returns.
_FUNCTION = re.compile(r"func\.func [^\n]*{\n(.*?)\n  return %(\w+) : [^\n]*\n}\n", flags=re.DOTALL)


@cache
def environment() -> jinja2.Environment:
    """The templates. A name without a value is an error when a template is rendered."""
    import jinja2  # imported here: only rendering needs it

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("dispatch_profiler", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    made.globals.update(exponential=exponential, error_function=error_function)
    return made


def render_module(operation: Operation, dispatches: Sequence[Dispatch]) -> str:
    """MLIR text with a function for each of `dispatches`, which all have `operation`.

    before: Matmul(4, 4, 4), [Default()]
    after:  func.func @matmul_4x4x4_f32t_f32t_f32t_tile_config_default(%lhs: tensor<4x4xf32>, ...
    """
    direct: dict[str, list[Dispatch]] = {}
    formed: list[str] = []
    for dispatch in dispatches:
        reduction = dispatch.configuration.reduced(operation)
        if reduction is None:
            template = dispatch.configuration.template or f"{operation.kind}.mlir.j2"
            direct.setdefault(template, []).append(dispatch)
        else:
            formed.append(_render_formed(dispatch, reduction))
    texts = [_render(template, op=operation, dispatches=part) for template, part in direct.items()]
    return "\n".join([*texts, *formed])


def render_launch(dispatch: Dispatch) -> str:
    """MLIR text for a program that calls `dispatch`: its function, after `packing_function` if the weight is packed.

    The function then takes the packed weight in place of the weight.
    """
    operation = dispatch.operation
    packing = dispatch.configuration.packing(operation)
    if not packing:
        return render_module(operation, [dispatch])
    names = {"packing": packing, "packed": packed_by(packing), "packing_function": dispatch.packing_function}
    reduction = dispatch.configuration.reduced(operation)
    if reduction is None:
        return _render(dispatch.configuration.template, op=operation, dispatches=[dispatch], **names)
    return _render_formed(dispatch, reduction, "packed.mlir.j2", **names)


def _render(template: str, **names: object) -> str:
    return environment().get_template(template).render(**names).strip("\n") + "\n"


def _render_formed(
    dispatch: Dispatch, reduction: Reduction, template: str = "formed.mlir.j2", **more: object
) -> str:
    """The steps of a form and its kernels."""
    inner = dispatch.configuration.kernel_configuration
    kernels = {
        step.result.name: _inlined(step, inner) for step in reduction.steps if isinstance(step, Kernel)
    }
    names = {"name": dispatch.name, "op": dispatch.operation, "reduction": reduction, "kernels": kernels}
    return _render(template, **names, **more)


def _inlined(kernel: Kernel, configuration: Configuration) -> str:
    """The body of the kernel's own function, with its operands and result as named in the form.

    before: func.func @matmul_...(%lhs: ...) { ... %sums = linalg.matmul ... ins(%lhs, %rhs : ...) ... return %sums }
    after:  %product = linalg.matmul ... ins(%columns, %filters : ...)
    """
    operation = kernel.operation
    text = render_module(operation, [Dispatch(operation, configuration)])
    function = _FUNCTION.fullmatch(text)
    if function is None:
        raise ValueError(f"the template of {operation.kind} does not end in one return:\n{text}")
    body, result = function.groups()
    to = kernel.result.name
    names = {"lhs": kernel.lhs.name, "rhs": kernel.rhs.name, result: to}
    return re.sub(r"%(\w+)", lambda match: "%" + names.get(match[1], f"{to}_{match[1]}"), body)
