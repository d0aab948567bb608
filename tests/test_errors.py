"""The error tree: drawn as it is, whole after a pickle, and with its exit statuses."""

from __future__ import annotations

import pickle
import re

import pytest

from dispatch_profiler import errors
from dispatch_profiler.errors import (
    CompilerError,
    DispatchProfilerError,
    MissingDependency,
    ToolError,
    UsageError,
    did_you_mean,
)


def classes_below(root: type) -> list[type]:
    """`root` and what descends from it in errors.py, parents first."""
    own = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(below for kind in own for below in classes_below(kind))]


EVERY_ERROR = classes_below(DispatchProfilerError)


def drawn_tree(text: str) -> dict[str, str | None]:
    """Name -> name of its parent, as the indentation of `text` draws it."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for indent, name in re.findall(r"^( {4,})([A-Z]\w+)", text, flags=re.MULTILINE):
        above = [(depth, outer) for depth, outer in above if depth < len(indent)]
        parents[name] = above[-1][1] if above else None
        above.append((len(indent), name))
    return parents


def real_tree() -> dict[str, str | None]:
    return {
        kind.__name__: None if kind is DispatchProfilerError else kind.__bases__[0].__name__
        for kind in EVERY_ERROR
    }


def test_the_drawn_tree_is_the_real_one():
    """The docstring of errors.py names every class under its parent, and no other."""
    assert drawn_tree(errors.__doc__) == real_tree()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(("        RangeError", "      RangeError"), id="nesting"),
        pytest.param(("ToolError ", "ToolsError "), id="name"),
        pytest.param(("      MissingDependency", "        - none"), id="missing"),
    ],
)
def test_a_wrong_drawing_is_seen(wrong: tuple[str, str]):
    """The comparison above fails on a wrong name, a wrong parent and a missing class."""
    assert drawn_tree(errors.__doc__.replace(*wrong)) != real_tree()


def test_the_drawn_exit_statuses_are_the_real_ones():
    """Every `exit status N` in the drawing is that of its class."""
    drawn = re.findall(r"^ +(\w+) .*exit status (\d)$", errors.__doc__, flags=re.MULTILINE)
    assert {name: int(status) for name, status in drawn} == {
        "UsageError": UsageError.exit_status,
        "ToolError": ToolError.exit_status,
        "MissingDependency": MissingDependency.exit_status,
    }


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_an_exit_status_is_inherited(kind: type[DispatchProfilerError]):
    """A request that cannot be met gives 2, a tool that broke gives 1."""
    assert kind.exit_status == (2 if issubclass(kind, (UsageError, MissingDependency)) else 1)


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind: type[DispatchProfilerError]):
    """Type, message, hint and whatever else was put on it come back."""
    error = kind("the rule", hint="the next step")
    error.dispatch = "matmul_4x4x4"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.message, back.hint, back.args) == (
        "the rule",
        "the rule",
        "the next step",
        ("the rule",),
    )
    assert back.dispatch == "matmul_4x4x4"


def test_a_compiler_error_keeps_its_diagnostics():
    """A field of a subclass survives pickling too."""
    back = pickle.loads(pickle.dumps(CompilerError("first line", diagnostics="all of it", hint="h")))
    assert (back.message, back.diagnostics, back.hint) == ("first line", "all of it", "h")


def test_a_subclass_elsewhere_survives_pickling():
    """The compiler's BuildError, with culprits of its own, crosses a process border whole."""
    from dispatch_profiler.compiler import BuildError

    back = pickle.loads(pickle.dumps(BuildError("m", diagnostics="d", culprits=("a", "b"))))
    assert (back.message, back.diagnostics, back.culprits) == ("m", "d", ("a", "b"))


def test_a_hint_is_empty_unless_given():
    """Code that prints a hint need not ask whether there is one."""
    assert DispatchProfilerError("m").hint == ""


def test_did_you_mean_names_the_nearest_and_all():
    """A near miss is answered with the nearest name, and every name that there is."""
    hint = did_you_mean("matmull", ["matmul", "conv2d"])
    assert hint == "did you mean 'matmul'? Available: matmul, conv2d"


def test_did_you_mean_does_not_guess_from_afar():
    """What resembles nothing is answered with the list alone."""
    assert did_you_mean("zzz", ["matmul", "conv2d"]) == "available: matmul, conv2d"


def test_did_you_mean_says_that_there_is_nothing():
    """A file without functions has no model, for instance."""
    assert did_you_mean("model", []) == "available: none"


def test_did_you_mean_shows_in_its_docstring_what_it_answers():
    """The example of the docstring is the answer."""
    shown = " ".join(did_you_mean.__doc__.split())
    assert did_you_mean("Matmull", ["matmul", "conv2d"]) in shown


@pytest.mark.parametrize(("got", "meant"), [("MATMUL", "matmul"), ("bf16T", "BF16t"), ("NHWC", "nhwc")])
def test_did_you_mean_disregards_case(got: str, meant: str):
    """The name is given as it is known."""
    assert did_you_mean(got, ["matmul", "BF16t", "nhwc"]).startswith(f"did you mean {meant!r}?")
