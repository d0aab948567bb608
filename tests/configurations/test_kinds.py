"""A kind of configuration defines everything about itself: registering it is enough."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from dispatch_profiler import configurations
from dispatch_profiler.configurations import (
    KINDS,
    Axis,
    Configuration,
    Limits,
    ListedConfiguration,
    Space,
    configuration_from_dict,
    load_configurations,
    rejection_reason,
    report_columns,
    spaces,
)
from dispatch_profiler.operations import Matmul

FOLDER = Path(configurations.__file__).parent


@dataclass(frozen=True)
class Unrolled(Configuration):
    """A kind as a contributor would write it."""

    kind: ClassVar[str] = "unrolled"
    yaml_key: ClassVar[str] = "unroll"
    field_names: ClassVar[tuple[str, ...]] = ("unrolled_by",)

    unroll: int
    split_k: int = 1

    @classmethod
    def space(cls, operation, limits):
        return Space(cls, (Axis("unroll", (1, 2, 4)),))

    @property
    def name(self):
        return f"unroll_config_{self.unroll}"

    def fields(self):
        return {"unrolled_by": str(self.unroll)}

    def invalid_reason(self, operation, limits):
        return f"{self.unroll} exceeds k={operation.k}" if self.unroll > operation.k else None


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(KINDS, Unrolled.kind, Unrolled)


def test_a_registered_kind_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("configurations: [{unroll: 4, types: [f16]}]")
    assert load_configurations(path) == (ListedConfiguration(Unrolled(4), types=("f16",)),)


def test_a_registered_kind_is_read_back_from_a_manifest():
    assert configuration_from_dict(Unrolled(4).to_dict()) == Unrolled(4)


def test_a_registered_kind_has_its_columns_and_its_space():
    assert report_columns()[-1] == "unrolled_by"
    (space,) = (space for space in spaces(Matmul(8, 8, 2), Limits()) if space.kind is Unrolled)
    found = [space.to_configuration(point) for point in space.points()]
    reasons = [rejection_reason(each, Matmul(8, 8, 2), Limits()) for each in found]
    assert reasons == [None, None, "4 exceeds k=2"]


def test_columns_are_those_of_every_kind_each_once():
    """They follow from the package alone."""
    columns = report_columns()
    assert len(set(columns)) == len(columns)
    assert set(columns) == {name for kind in KINDS.values() for name in kind.field_names}


def test_every_kind_has_a_key_of_its_own():
    keys = [kind.yaml_key for kind in KINDS.values() if kind.yaml_key]
    assert len(set(keys)) == len(keys)


def test_only_the_registry_imports_every_kind():
    """No other module of the package branches on a kind: what a kind is it says itself."""
    kinds = {kind.__name__ for kind in KINDS.values()} - {"Default", "Unrolled"}
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & kinds - defined
        assert not used or path.name == "kinds.py", (path.name, used)
