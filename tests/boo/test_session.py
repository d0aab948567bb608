"""All that launches keep in the memory of a process is in one object."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dispatch_profiler.boo
from dispatch_profiler.boo.session import PARTS, SESSION, Session

FOLDER = Path(dispatch_profiler.boo.__file__).parent
MODULES = {
    ".".join(each.relative_to(FOLDER).with_suffix("").parts): each.read_text()
    for each in FOLDER.rglob("*.py")
}
#: How containers begin that a module can only have to fill them.
EMPTY = ("{}", "[]", "set()", "dict()", "list()", "WeakSet(", "weakref.Weak", "OrderedDict(", "Memory(")
#: Module -> what it keeps outside of the session, because a caller must not drop it.
OTHERS = {
    "launching.launchable": {"_launchables", "_kept"},  # what a forked process loads again
    "ops.flops": {"_waiting"},  # formulas, until torch's counter of operations is imported
}


def test_a_cleared_part_keeps_nothing() -> None:
    session = Session()
    kernels, plans = session.keep("kernels", {1: 2}), session.keep("convolutions", {3: 4})
    session.clear("kernels", "regions")  # regions: no module that keeps any is imported
    assert (kernels, plans) == ({}, {3: 4})
    session.clear()
    assert plans == {}


@pytest.mark.parametrize("name", ["kernels", "tensors"])
def test_a_part_has_a_name_of_its_own_from_the_list(name: str) -> None:
    session = Session()
    session.keep("kernels", {})
    with pytest.raises(ValueError, match=f"'{name}' is not a free part"):
        session.keep(name, {})


def test_a_name_that_no_part_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="'kernel' is not a part of a session: available are kernels, "):
        SESSION.clear("kernel")


def test_modules_add_the_parts_that_the_list_says() -> None:
    """`PARTS` names the module of each part in its last words."""
    stated = {(what.rpartition("`boo.")[2].rstrip("`)"), name) for name, what in PARTS.items()}
    assert {(module, name) for module, text in MODULES.items() for name in added_parts(text)} == stated


def test_no_other_module_keeps_what_calls_made() -> None:
    kept = {module: filled_containers(text) for module, text in MODULES.items()}
    assert {module: names for module, names in kept.items() if names} == OTHERS


def test_what_a_module_keeps_is_found() -> None:
    text = (
        'a: dict[int, int] = {}\nb = WeakSet()\nc = SESSION.keep("weights", {})\nd = {1: 2}\ne = Memory(3)\n'
    )
    assert added_parts(text) == {"weights"}
    assert filled_containers(text) == {"a", "b", "e"}


def added_parts(text: str) -> set[str]:
    """The names in calls of `SESSION.keep`."""
    return {
        ast.literal_eval(each.args[0])
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "SESSION.keep"
    }


def filled_containers(text: str) -> set[str]:
    """Containers at the top of a module that are empty there, so that calls fill them."""
    names = set()
    for each in ast.parse(text).body:
        target = each.target if isinstance(each, ast.AnnAssign) else None
        if isinstance(each, ast.Assign):
            target = each.targets[0]
        value = getattr(each, "value", None)
        if target is not None and value is not None and ast.unparse(value).startswith(EMPTY):
            names.add(ast.unparse(target))
    return names
