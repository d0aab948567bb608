"""The functions of a source as text, and which of them this package rendered; works without the compiler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildRequest
from dispatch_profiler.dispatches import Dispatch

#: A function as the templates write it: from the start of a line to a brace at the start of a line. Its own kernels, if
#: it has any, come before it.
_KERNELS = r"(?:^hal\.executable\.source [^\n]*{\n(?:^ [^\n]*\n)*^}\n)*"
_FUNCTION = re.compile(
    _KERNELS + r"^func\.func (?:\w+ )?@([\w$.-]+)\(.*?^}\n?", flags=re.DOTALL | re.MULTILINE
)


def functions_of(source: str) -> dict[str, str]:
    """Name -> text of each function in the layout of the templates, with its own kernels."""
    return {match[1]: match[0].strip() for match in _FUNCTION.finditer(source)}


def relevant_source(source: str, functions: Collection[str]) -> str:
    """`source` without its functions other than `functions`.

    Returns all of `source` if it lacks one of `functions`, as in a file written by hand.
    """
    found = {match[1] for match in _FUNCTION.finditer(source)}
    if not found.issuperset(functions):
        return source
    left = _FUNCTION.sub(lambda match: match[0] if match[1] in functions else "", source)
    return re.sub(r"\n{2,}", "\n", left).lstrip("\n")


def reproducer(request: BuildRequest, dispatch: str, reason: str) -> str:
    """MLIR text with one function of `request`, headed by `reason` and the command that reproduces it."""
    command = shlex.join(["iree-compile", *request.flags, f"{dispatch}.mlir", "-o", f"{dispatch}.vmfb"])
    text = relevant_source(request.source, [dispatch])
    return f"// {' '.join(reason.split())}\n// {command}\n{text}"


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
