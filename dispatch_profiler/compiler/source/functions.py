"""Extracting functions from a generated source as text, without loading the compiler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from dispatch_profiler.compiler._base import BuildRequest

#: A function as the templates write it: from the start of a line to a brace at the start of a line. Its own kernel, if
#: it has one, comes before it.
_KERNEL = r"(?:^hal\.executable\.source [^\n]*{\n(?:^ [^\n]*\n)*^}\n)?"
_FUNCTION = re.compile(
    _KERNEL + r"^func\.func (?:\w+ )?@([\w$.-]+)\(.*?^}\n?", flags=re.DOTALL | re.MULTILINE
)


def functions_of(source: str) -> dict[str, str]:
    """Name -> text of each function in the layout of the templates, with its own kernel."""
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
