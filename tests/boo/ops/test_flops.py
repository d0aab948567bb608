"""`FlopCounterMode` counts for our operators, and for the regions of compiled models, what it counts for torch's."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dispatch_profiler.boo.backends import backend  # noqa: E402
from dispatch_profiler.boo.fusion.execute.torch_gradients import CONVOLUTION_GRADIENTS  # noqa: E402
from dispatch_profiler.boo.fusion.schema import (  # noqa: E402
    BACKWARD_FUSIONS,
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
)
from dispatch_profiler.boo.modeling import replace_convs_with_boo  # noqa: E402
from dispatch_profiler.boo.ops import boo_layer_norm  # noqa: E402

CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "2d, groups, stride": (
        lambda: nn.Conv2d(4, 8, (3, 2), stride=2, groups=2, dilation=(2, 1)),
        (2, 4, 9, 7),
    ),
    "2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (1, 4, 6, 6)),
    "2d, same": (lambda: nn.Conv2d(4, 5, (3, 5), padding="same"), (2, 4, 6, 6)),
    "3d": (lambda: nn.Conv3d(2, 3, 2, padding=(1, 0, 1)), (2, 2, 4, 5, 3)),
    "unbatched": (lambda: nn.Conv2d(4, 5, 3), (4, 6, 6)),
}


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    # Torch 2.6 compiles no module of a process any more once it passed over one for the counter's hooks.
    from torch._dynamo import eval_frame, external_utils

    for code in external_utils.wrap_inline.__code__.co_consts:
        if isinstance(code, CodeType):
            eval_frame.reset_code(code)


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


#: Both backwards of these; of the others, whose flops follow from shapes in the same way, only that by torch.
_QUICK = ("2d, groups, stride", "unbatched")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param(name, kernels, marks=pytest.mark.slow if kernels == "1" and name not in _QUICK else ())
        for name in CONVOLUTIONS
        for kernels in ("0", "1")
    ],
)
def test_convolutions_and_their_gradients(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", kernels)
    make, shape = CONVOLUTIONS[name]
    theirs = make()
    ours = replace_convs_with_boo(copy.deepcopy(theirs))
    for needs_grad in (False, True):
        x = torch.randn(shape, requires_grad=needs_grad)
        found = [counted(lambda m=model, x=x: m(x).sum().backward()) for model in (ours, theirs)]
        assert found[0] == found[1] > 0
    with torch.no_grad():
        assert counted(lambda: ours(x)) == counted(lambda: theirs(x)) > 0


def test_layer_norms_count_as_little_as_torchs() -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    function = torch.nn.functional.layer_norm
    assert counted(lambda: boo_layer_norm(x, (8,), w).sum().backward()) == 0
    assert counted(lambda: function(x, (8,), w).sum().backward()) == 0


def network() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2, padding=1),
        nn.ConvTranspose2d(8, 4, 3, stride=2),
        nn.Flatten(2),
        nn.Linear(121, 5),
        nn.LayerNorm(5),
    )


SCHEMAS = {
    "all kernels": backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS.with_rules(BACKWARD_FUSIONS)),
    "some kernels": backend(),
}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")  # the counter has global hooks
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_backward_of_a_compiled_model(name: str) -> None:
    """Under a mode, Dynamo compiles nothing; a backward whose forward ran before is compiled."""
    model = network()
    x = torch.randn(2, 3, 7, 7)
    compiled = torch.compile(model, backend=SCHEMAS[name], dynamic=False)
    assert counted(lambda: compiled(x).sum().backward()) == counted(lambda: model(x).sum().backward())
    ours, theirs = compiled(x).sum(), model(x).sum()
    assert counted(ours.backward) == counted(theirs.backward) > 0


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True]])
def test_gradients_that_keep_memory_formats(mask: list[bool]) -> None:
    """As inductor calls them."""
    x, dy, w = torch.randn(2, 4, 9, 9), torch.randn(2, 8, 7, 7), torch.randn(8, 2, 3, 3)
    options = ([8], [1, 1], [0, 0], [1, 1], False, [0, 0], 2, mask)
    ours = counted(lambda: CONVOLUTION_GRADIENTS(dy, x, w, *options))
    assert ours == counted(lambda: torch.ops.aten.convolution_backward.default(dy, x, w, *options)) > 0


@pytest.mark.slow
def test_the_graph_that_a_backend_returns() -> None:
    """Called directly, as by compilers that are built on torch's."""
    found: list[Any] = []
    made = SCHEMAS["all kernels"]

    def noting(module: Any, inputs: Any) -> Any:
        function = made(module, inputs)
        found.append((function, list(inputs)))
        return function

    model, x = network().eval(), torch.randn(2, 3, 7, 7)
    with torch.no_grad():
        torch.compile(model, backend=noting, dynamic=False)(x)
        ((function, _),) = found
        inputs = [*model.parameters(), x]
        placed = sorted(inputs, key=lambda each: each is x)
        expected = counted(lambda: model(x))
        assert expected > 0
        names = {tuple(each.shape): each for each in placed}
        given = [names[tuple(each.shape)] for each in found[0][1]]
        assert counted(lambda: function(*given)) == expected


# If ours is the first, it waits for the import of the counter; else it finds the counter in `sys.modules`.
@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param("counter", marks=pytest.mark.slow), "ours"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    imports = [
        "from torch.utils.flop_counter import FlopCounterMode",
        "from dispatch_profiler.boo.ops import boo_conv",
    ]
    program = f"""
import sys, torch
{chr(10).join(imports if first == "counter" else imports[::-1])}
assert not any("AfterImport" in type(each).__name__ for each in sys.meta_path)
with FlopCounterMode(display=False) as counter:
    boo_conv(torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3))
assert counter.get_total_flops() == 2 * 3 * 2 * 9 * 4, counter.get_total_flops()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_our_operators_do_not_import_the_counter() -> None:
    """With it comes Triton, where that is installed."""
    program = "import sys; from dispatch_profiler.boo.ops import boo_conv; assert 'torch.utils.flop_counter' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
