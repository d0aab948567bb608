"""Outside `operations/`, only modules named after a family check for its classes. All others ask the operation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dispatch_profiler
from dispatch_profiler import operations
from dispatch_profiler.operations import KINDS, Operation

PACKAGE = Path(dispatch_profiler.__file__).parent


def kinds_and_families(without: str = "") -> set[str]:
    """Names of every subclass of Operation that the package defines but those of a family, and of Operation itself."""
    found, todo = set(), [Operation]
    while todo:
        kind = todo.pop()
        if not without or getattr(kind, "family", "") != without:
            found.add(kind.__name__)
        todo += [each for each in kind.__subclasses__() if each.__module__.startswith(operations.__name__)]
    return found


def class_checks(source: str, names: set[str]) -> Iterator[int]:
    """Lines on which a class of `names` is checked for: isinstance, issubclass, type(...) is, match."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            parts: list[ast.AST] = [node.args[1]]
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
            is_type = getattr(node.left.func, "id", "") == "type"
            parts = list(node.comparators) if is_type else []
        elif isinstance(node, ast.MatchClass):
            parts = [node.cls]
        else:
            continue
        mentioned = {
            getattr(each, "id", getattr(each, "attr", "")) for part in parts for each in ast.walk(part)
        }
        if mentioned & names:
            yield node.lineno if hasattr(node, "lineno") else 0


def test_no_code_outside_operations_checks_for_a_kind():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != PACKAGE / "operations"
        for line in class_checks(path.read_text(), kinds_and_families(path.stem))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(operation, Matmul)",
        "isinstance(operation, (int, operations.Conv2d))",
        "issubclass(kind, Contraction)",
        "type(operation) is BatchMatmul",
        "match operation:\n    case Conv2d(): pass",
    ],
)
def test_every_way_to_check_is_found(source):
    assert list(class_checks(source, kinds_and_families())) != []


def test_every_registered_kind_is_looked_for():
    assert {kind.__name__ for kind in KINDS.values()} <= kinds_and_families()
