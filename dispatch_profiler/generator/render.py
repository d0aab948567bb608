"""Operations and configurations -> MLIR text, through the templates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.operations import Operation

if TYPE_CHECKING:
    import jinja2


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # imported here: only rendering needs it

    return jinja2.Environment(
        loader=jinja2.PackageLoader("dispatch_profiler", "templates"),
        undefined=jinja2.StrictUndefined,  # an unfilled name is an error, never empty text
        autoescape=False,
        keep_trailing_newline=True,
    )


def render_module(operation: Operation, dispatches: Sequence[Dispatch]) -> str:
    """MLIR text with a function for each of `dispatches`, which all have `operation`.

    before: Matmul(4, 4, 4), [Default()]
    after:  func.func @matmul_4x4x4_f32t_f32t_f32t_tile_config_default(%lhs: tensor<4x4xf32>, ...
    """
    template = _environment().get_template(f"{operation.kind}.mlir.j2")
    return template.render(op=operation, dispatches=dispatches).strip("\n") + "\n"
