"""Weights of compiled models are packed again only after they have changed, where no gradients are computed."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiled_models import check_alike, check_equals_eager
from torch import nn

from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.kernels import build
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Built
from dispatch_profiler.configurations import CpuTiles, Formed, Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target
from dispatch_profiler.targets.untuned import launch_kernels, packed_microkernels

STRICT = backend(strict=True)
PRODUCTS = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels whose weights were packed."""
    found: list[str] = []
    pack = PackedLaunch.pack

    def note(self: PackedLaunch, weight: Any) -> Any:
        found.append(self.kernel.function)
        return pack(self, weight)

    monkeypatch.setattr(PackedLaunch, "pack", note)
    SESSION.clear("launchables", "packed_launches", "kernels")
    yield found
    SESSION.clear("launchables", "packed_launches", "kernels")


class Net(nn.Module):
    """A run of a 3x3, a pointwise and a depthwise convolution, whose forms permute the filters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 1)
        self.depthwise = nn.Conv2d(32, 32, 3, groups=32)

    def forward(self, x: Any) -> Any:
        return self.depthwise(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))


#: Each weight is used often enough in a call to be packed, although each call compares it with its snapshot.
X = torch.randn(2, 8, 14, 14, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_a_weight_is_packed_once_until_it_changes(packs: list[str]) -> None:
    model = Net().eval()
    compiled = check_equals_eager(model, STRICT, X)
    assert len(packs) == 3
    optimizer = torch.optim.SGD([model.first.weight], lr=0.1)
    model.first.weight.grad = torch.ones_like(model.first.weight)
    other = Net().state_dict()
    changes = [(optimizer.step, 1), (lambda: model.load_state_dict(other), 3), (lambda: None, 0)]
    for change, expected in changes:
        packs.clear()
        change()
        with torch.no_grad():
            for _ in range(3):
                check_alike(compiled(X), model(X))
        assert len(packs) == expected


@pytest.mark.slow
def test_equal_layers_that_share_a_run_pack_a_weight_each(packs: list[str]) -> None:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)).eval()
    compiled = [torch.compile(each, backend=PRODUCTS, dynamic=False) for each in layers]
    x = torch.randn(256, 64)
    with torch.no_grad():
        for _ in range(3):
            y = expected = x
            for one, other in zip(compiled, layers, strict=True):
                y, expected = one(y), other(expected)
            check_alike(y, expected)
    assert len(packs) == 6


@pytest.mark.slow
def test_a_copy_of_a_model_packs_its_own_weights(packs: list[str]) -> None:
    model = Net().eval()
    check_equals_eager(model, STRICT, X)
    packs.clear()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.first.weight.mul_(-1)
    check_equals_eager(copied, STRICT, X)
    assert len(packs) == 3


@pytest.mark.slow
def test_other_batch_sizes_share_a_packed_weight(packs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their kernels pack alike: on some numbers of cores, one of them has a microkernel and the other a form."""
    monkeypatch.setattr(packed_microkernels, "usable_threads", lambda: 1)
    model = Net().eval()
    compiled = check_equals_eager(model, STRICT, X)
    with torch.no_grad():
        x = X.repeat(2, 1, 1, 1)
        check_alike(compiled(x), model(x))
    assert len(packs) == 3


def test_filters_of_small_images_are_not_packed(packs: list[str]) -> None:
    """Each filter is used 49 times, or 36 times those with taps: kernels copy them, whatever their order in memory."""
    model = nn.Sequential(nn.Conv2d(8, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 2)).eval()
    check_equals_eager(model, STRICT, torch.randn(1, 8, 7, 7))
    check_equals_eager(model.to(memory_format=torch.channels_last), STRICT, torch.randn(1, 8, 7, 7))
    assert not packs


@pytest.mark.slow
def test_linear_layers(packs: list[str]) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    x = torch.randn(256, 64)
    compiled = check_equals_eager(model, PRODUCTS, x)
    assert len(packs) == 2
    with torch.no_grad():
        model[2].weight.neg_()
        check_alike(compiled(x), model(x))


def test_operands_that_are_no_parameters_are_not_packed(packs: list[str]) -> None:
    check_equals_eager(
        lambda a, b: torch.relu(a @ b.t()), PRODUCTS, torch.randn(256, 64), torch.randn(128, 64)
    )
    assert not packs


@pytest.mark.slow
def test_a_graph_with_gradients_packs_nothing(packs: list[str]) -> None:
    model = Net().eval()
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    check_alike(compiled(X), model(X))
    compiled(X).sum().backward()
    assert not packs and model.first.weight.grad is not None


@pytest.mark.slow
def test_weights_that_change_in_each_call_are_soon_not_packed(packs: list[str]) -> None:
    model = Net().eval()
    compiled = check_equals_eager(model, STRICT, X)
    with torch.no_grad():
        for _ in range(8):
            model.first.weight.mul_(0.9)
            check_alike(compiled(X), model(X))
    assert len([each for each in packs if "3x3" in each]) <= 5


def test_a_weight_that_is_used_too_rarely_is_not_packed(packs: list[str]) -> None:
    """Comparing it with its snapshot in each call would take longer than packing saves."""
    check_equals_eager(nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), PRODUCTS, torch.randn(200, 64))
    assert not packs


@pytest.mark.slow
def test_weights_of_inference_mode_are_packed_too(packs: list[str]) -> None:
    with torch.inference_mode():
        model = Net().eval()
        compiled = torch.compile(model, backend=STRICT, dynamic=False)
        for _ in range(3):
            check_alike(compiled(X), model(X))
        assert len(packs) == 3
        model.first.weight.mul_(2)
        check_alike(compiled(X), model(X))
    assert len(packs) == 4


@pytest.mark.slow
def test_packed_weights_are_freed_with_the_model(packs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    pack = PackedLaunch.pack

    def note(self: PackedLaunch, weight: Any) -> Any:
        found = pack(self, weight)
        made.extend(weakref.ref(each.untyped_storage()) for each in found)
        return found

    monkeypatch.setattr(PackedLaunch, "pack", note)
    model = Net().eval()
    compiled = check_equals_eager(model, STRICT, X)
    assert len(made) == 3 and all(each() is not None for each in made)
    del model, compiled
    torch._dynamo.reset()
    gc.collect()
    assert all(each() is None for each in made)


@pytest.mark.slow
def test_the_unpacked_kernel_is_used_if_the_packed_one_does_not_compile(
    packs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The packed variant has tiles that no vectorization supports; the next one is not packed."""
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path))
    usual = build.LaunchTuning.variants

    def with_bad_packing(self: Any, operation: Operation, target: Target, **options: Any) -> Any:
        found = usual(self, operation, target, **options)
        bad = Formed("permuted", CpuTiles((1, 1, 1, 1), (1, 1, 1, 3, 1, 1, 1)), packed=True)
        return (
            Variant(Dispatch(operation, bad)) if each.dispatch.configuration.packs_weight else each
            for each in found
        )

    monkeypatch.setattr(build.LaunchTuning, "variants", with_bad_packing)
    take = build.KernelSearch.take
    failed = []

    def fails(self: Any, built: Built) -> Any:
        if self.variant.dispatch.configuration.packs_weight:
            failed.append(self.variant.dispatch.name)
        return take(self, built)

    monkeypatch.setattr(build.KernelSearch, "take", fails)
    check_equals_eager(Net().eval(), STRICT, X)
    assert failed and not packs


@pytest.mark.slow  # tests/compiler/test_compiled_microkernels.py has packed microkernels for this CPU
def test_a_packed_microkernel_computes_on_cpus_with_any_vectors(
    packs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule chooses none without AVX-512, but a library may have one."""

    def likeliest(operation: Operation, target: Target) -> tuple[Microkernel, ...]:
        found = Microkernel.likely(operation, target.limits, packed_weights=True)
        return tuple(each for each in found if each.packed)[:1]

    monkeypatch.setattr(launch_kernels, "packed_kernels", likeliest)
    layers = nn.Conv2d(8, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 64, 1), nn.ReLU()
    model = nn.Sequential(*layers).eval()
    check_equals_eager(model, STRICT, X)
    assert len(packs) == 2
    with torch.no_grad():
        regions = explain(model, [X]).regions
    assert all(each.configuration.startswith("tile_config_packed_microkernel_") for each in regions)


@pytest.mark.slow
def test_explain_names_the_packed_configuration(packs: list[str]) -> None:
    with torch.no_grad():
        found = explain(Net().eval(), [X])
    assert [each.configuration.startswith("tile_config_packed_") for each in found.regions[:2]] == [
        True,
        True,
    ]


_WARM = """
import sys
import torch
from dispatch_profiler.compiler.workers import pool
def fail(*_): raise AssertionError("a warm process compiles")
pool.BuildPool.results = fail
sys.path[:0] = {paths!r}
from test_packed_models import Net, STRICT, X
torch.manual_seed(1)
model = Net().eval()
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend=STRICT, dynamic=False)(X), model(X))
"""


@pytest.mark.slow  # tests above pack without compiling again, test_known_graphs.py has a new process
def test_a_warm_process_compiles_nothing(packs: list[str]) -> None:
    check_equals_eager(Net().eval(), STRICT, X)
    paths = [each for each in sys.path if "tests" in each]
    done = subprocess.run([sys.executable, "-c", _WARM.format(paths=paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
