"""The attributes of modules, compared all at once."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dispatch_profiler.boo.backends.module_attributes import (  # noqa: E402
    Attribute,
    AttributeCheck,
    guard_of,
    is_of_torch,
)


class Norm(torch.nn.BatchNorm2d):
    """A norm with settings of its own."""

    def __init__(self) -> None:
        super().__init__(4)
        self.scale = 2
        self.after = None
        self.kinds = ["a"]

    @property
    def width(self) -> int:
        return self.num_features


def found(module: Any, *names: str) -> list[Attribute]:
    attributes = [Attribute.of(module, name) for name in names]
    return [each for each in attributes if each is not None]


@pytest.mark.parametrize("value", [3, 2.0, True, None, "2"])
def test_another_value_or_type_is_noticed(value: object):
    modules = [Norm() for _ in range(3)]
    check = AttributeCheck(
        [each for module in modules for each in found(module, "scale", "training", "after")]
    )
    assert check(None)
    modules[1].scale = value
    assert not check(None)
    modules[1].scale = 2
    assert check(None)
    modules[2].eval()
    assert not check(None)


def test_an_equal_value_is_no_change():
    module = Norm()
    module.scale, module.after = 0.5, "after"
    check = AttributeCheck(found(module, "scale", "after"))
    module.scale, module.after = float("0.5"), "".join(["af", "ter"])
    assert check(None)


def test_a_deleted_attribute_is_a_change():
    module = Norm()
    check = AttributeCheck(found(module, "scale"))
    del module.scale
    assert not check(None)


def test_a_check_keeps_no_module_alive():
    module = Norm()
    check, gone = AttributeCheck(found(module, "scale")), weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    assert not check(None)


def test_only_constants_in_the_dict_of_a_module_are_attributes():
    module = Norm()
    assert [each.name for each in found(module, "scale", "after", "kinds", "width", "weight", "missing")] == [
        "scale",
        "after",
    ]
    assert Attribute.of(SimpleNamespace(scale=2), "scale") is None


def test_attributes_of_torch_are_told_from_those_of_a_program():
    module = Norm()
    assert is_of_torch(module, "eps") and is_of_torch(module, "momentum") and not is_of_torch(module, "scale")
    assert is_of_torch(torch.nn.Conv2d(1, 1, 1), "scale")
    assert not is_of_torch(None, "eps")


def test_guards_are_created_one_by_one_if_torch_has_other_guards():
    created: list[str] = []
    guards = [SimpleNamespace(create=lambda _, name=name: created.append(name)) for name in "ab"]
    source = SimpleNamespace(make_guard=lambda create: SimpleNamespace(create_fn=create, name="L['self']"))
    guard = guard_of(source, found(Norm(), "scale"), guards)
    guard.create_fn(SimpleNamespace(), guard)
    assert created == ["a", "b"]
