"""Programs of BOO's own documentation that docs/boo.md shows in another form: word for word, but for the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

PACKAGES = {
    "iree.turbine.dynamo.backends.boo": "dispatch_profiler.boo.backends",
    "iree.turbine.kernel.boo": "dispatch_profiler.boo",
}

MODELS = """
import torch

model : torch.nn.Module = ...

# To just use boo fusions:
boo_model = torch.compile(model, dynamic=False, backend="iree_boo")
# To use boo fusions and inductor:
boo_inductor_model = torch.compile(model, dynamic=False, backend="iree_boo_inductor")
"""

NESTED = """
import torch

import iree.turbine.dynamo.backends.boo as boo

customized_backend = boo.backend(nested_backend="some_other_backend")

model : torch.nn.Module = ...

customized_boo_model = torch.compile(model, dynamic=False, backend=customized_backend)
"""

CONVOLUTION = """
import torch
from iree.turbine.kernel.boo.ops import boo_conv

input_shape = ...
weight_shape = ...
dtype = ...

# make some 3, 4, or 5d tensors
x = torch.randn(input_shape, dtype=dtype, device="cuda:0")
w = torch.randn(weight_shape, dtype=dtype, device="cuda:0")
b = None # optionally fuse with a bias-add

# perform convolution
y = boo_conv(x,w,b) # can also specify stride, dilation, padding, groups, and layouts (e.g., "NHWC")

# usual conv kwargs are also available:
y = boo_conv(x,w,stride=[1,2],dilation=[2,2], padding=[1,0])

# additional kwargs for alternative layouts also available:
y = boo_conv(x,w, shared_layout="NHWC")
y = boo_conv(x,w, input_layout="NCHW", kernel_layout="NHWC", output_layout="NCHW")
"""

#: What stands for the ellipses. The shapes fit every call, in every layout.
ELLIPSES = {
    "input_shape = ...": "input_shape = (2, 1, 9, 1)",
    "weight_shape = ...": "weight_shape = (3, 1, 1, 1)",
    "dtype = ...": "dtype = torch.float32",
    "Module = ...": "Module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()",
}


@pytest.fixture(autouse=True)
def _caches(shared_cache: None) -> None:
    torch._dynamo.reset()


def ran(snippet: str) -> dict[str, Any]:
    """The variables after `snippet`."""
    for old, new in (PACKAGES | ELLIPSES).items():
        snippet = snippet.replace(old, new)
    assert " ..." not in snippet and "iree.turbine" not in snippet
    found: dict[str, Any] = {}
    exec(snippet, found)
    return found


def check_compiled(found: dict[str, Any], *names: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for name in names:
            torch.testing.assert_close(found[name](x), found["model"](x))


# torch's own modules are deprecated by torch, which inductor imports.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.slow  # docs/boo.md has nearly the same program, which tests/test_documents.py runs
def test_models():
    check_compiled(ran(MODELS), "boo_model", "boo_inductor_model")


@pytest.fixture
def some_other_backend() -> Iterator[list[str]]:
    """A backend of that name; the operators that it was given."""
    from torch._dynamo.backends import registry

    given: list[str] = []

    def some_other_backend(module: Any, example_inputs: Any) -> Any:
        given.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    registry.register_backend(some_other_backend)
    yield given
    del registry._COMPILER_FNS["some_other_backend"]


@pytest.mark.slow
def test_another_nested_backend(some_other_backend: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOO_AUTOTUNE", "0")  # measured, the region of this small model may be left to torch
    check_compiled(ran(NESTED), "customized_boo_model")
    assert any("dispatch_profiler" in each for each in some_other_backend)


def check_convolution(found: dict[str, Any]) -> None:
    """The last result: images are NCHW, filters NHWC."""
    expected = torch.nn.functional.conv2d(found["x"], found["w"].permute(0, 3, 1, 2))
    torch.testing.assert_close(found["y"], expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the program is for cuda:0")
def test_a_convolution():
    check_convolution(ran(CONVOLUTION))


def test_a_convolution_on_the_cpu():
    found = ran(CONVOLUTION.replace("cuda:0", "cpu"))
    check_convolution(found)
    assert found["y"].device.type == "cpu"
