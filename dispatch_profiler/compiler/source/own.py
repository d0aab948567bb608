"""Which functions of a tree's source this package rendered."""

from __future__ import annotations

from dataclasses import replace

from dispatch_profiler.compiler._base import BuildRequest
from dispatch_profiler.compiler.source.functions import functions_of
from dispatch_profiler.dispatches import Dispatch


def with_known_source(request: BuildRequest) -> BuildRequest:
    """`request` with its functions as their configurations render them, and functions that differ marked as `foreign`.

    A hash in a manifest proves nothing about the source: a person who edits one can edit the other.
    """
    names = [dispatch.name for dispatch in request.dispatches]
    functions = functions_of(request.source)
    if not functions.keys() >= set(names):
        return replace(request, foreign=tuple(names), is_from_file=False)  # written by hand
    known = [each for each in request.dispatches if _rendered(each) == functions[each.name]]
    foreign = tuple(name for name in names if name not in {each.name for each in known})
    # The text between the functions is left out.
    source = "\n\n".join(functions[name] for name in names) + "\n"
    return replace(request, source=source, foreign=foreign, is_from_file=False)


def _rendered(dispatch: Dispatch) -> str:
    """The text of a function; empty if no template renders what the manifest requests."""
    from dispatch_profiler.generator.render import render_module  # imported here: most runs compile nothing

    try:
        return functions_of(render_module(dispatch.operation, [dispatch])).get(dispatch.name, "")
    except Exception:
        # Any exception: a manifest may combine fields in ways that no plan or template expects, which fails
        # in various places, with a KeyError, a ZeroDivisionError or an error of jinja2. The function is then
        # checked as foreign.
        return ""
