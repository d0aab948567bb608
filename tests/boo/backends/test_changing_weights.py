"""Compiled models compute with the weights of the moment, however and by which process these are changed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor
PRODUCTS = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True)


class Net(nn.Module):
    """Some weights are packed (many pixels), some permuted (3x3), some read as they are; a batch norm has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.head = nn.Conv2d(16, 16, 3, stride=4), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.head(x.mean((2, 3)))


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def clip(model: nn.Module) -> None:
    for each in model.parameters():
        each.data.clamp_(-0.05, 0.05)


def prune(model: nn.Module) -> None:
    for each in model.parameters():
        if each.dim() > 1:
            each.data[each.flatten(1).norm(dim=1).argmin()] = 0


def write_statistics(model: Any) -> None:
    model.norm.running_mean.data[3] += 1
    model.norm.running_var.numpy()[5] *= 2


def merge_low_rank(model: Any) -> None:
    down, up = torch.randn(1, 16), torch.randn(4, 1)
    model.head.weight.data += up @ down


def fused_step(model: nn.Module) -> None:
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
        each.grad.view(-1)[0] = 1
    torch.optim.Adam(model.parameters(), lr=0.3, fused=True).step()


def flatten(model: nn.Module) -> None:
    """Parameters become views of one vector, which is then written to."""
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector, model.parameters())
    vector[5::7] += 0.5


CHANGES = (clip, prune, write_statistics, merge_low_rank, fused_step, flatten)


@pytest.mark.some(2)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "name", ["iree_boo", "iree_boo_inductor", PRODUCTS], ids=["iree_boo", "iree_boo_inductor", "products"]
)
def test_every_change_is_seen_by_the_next_call(name: Any, mode: Any) -> None:
    model = Net().eval()
    fast = torch.compile(model, backend=name, dynamic=False)
    with mode():
        check_alike(fast(X), model(X))
        fast(X)
    for change in CHANGES:
        with torch.no_grad():
            change(model)
        with mode():
            for _ in range(2):
                check_alike(fast(X), model(X))


def swap(model: Any) -> None:
    torch.utils.swap_tensors(model.first.weight, nn.Parameter(torch.randn_like(model.first.weight)))


@pytest.fixture
def swaps() -> None:
    """Skip where nothing that `torch.compile` has seen can be swapped, whatever the backend."""
    torch._dynamo.reset()
    model = Net().eval()
    with torch.no_grad():
        torch.compile(model, backend="eager", dynamic=False)(X)
        try:
            swap(model)
        except RuntimeError as error:
            pytest.skip(f"torch cannot swap weights of compiled models: {error}")


@pytest.mark.some(2)
@pytest.mark.usefixtures("swaps")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "name", ["iree_boo", "iree_boo_inductor", PRODUCTS], ids=["iree_boo", "iree_boo_inductor", "products"]
)
def test_swapped_tensors_are_seen_by_the_next_call(name: Any, mode: Any) -> None:
    model = Net().eval()
    fast = torch.compile(model, backend=name, dynamic=False)
    with mode():
        check_alike(fast(X), model(X))
    with torch.no_grad():
        swap(model)
    with mode():
        for _ in range(2):
            check_alike(fast(X), model(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, lambda each, **given: torch.optim.AdamW(each, eps=1e-2, **given)],
    ids=["SGD", "AdamW"],
)
def test_training_with_fused_optimizers_follows_eager(make: Callable[..., Any]) -> None:
    """With a large epsilon, Adam does not amplify gradients that are rounding errors alone."""
    models = Net(), Net()
    models[1].load_state_dict(models[0].state_dict())
    sides = torch.compile(models[0], backend="iree_boo", dynamic=False), models[1]
    optimizers = [make(each.parameters(), lr=0.01, fused=True) for each in models]
    for _ in range(4):
        for side, optimizer in zip(sides, optimizers, strict=True):
            optimizer.zero_grad()
            side(X).square().mean().backward()
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    for each in (*models, sides[0]):
        each.eval()
    with torch.no_grad():
        torch.testing.assert_close(sides[0](X), models[0](X), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 20], ids=["weight read in place or permuted", "packed weight"])
def test_threads_never_see_weights_older_than_their_call(size: int) -> None:
    """While a thread counts all elements of the filters up, results can only grow."""
    model = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1, bias=False), nn.ReLU()).eval()
    weight = model[0].weight.detach().numpy()
    weight[:] = 1
    x = torch.ones(1, 4, size, size)
    fast = torch.compile(model, backend="iree_boo", dynamic=False)
    wrong: list[Any] = []
    stop = threading.Event()
    with torch.no_grad():
        fast(x)

        def run() -> None:
            with torch.no_grad():
                while not stop.is_set():
                    before = float(weight.min())
                    found = fast(x)[0, :, 1, 1].min().item()
                    if found < 36 * before * (1 - 1e-5):
                        wrong.append((before, found))

        with ThreadPoolExecutor(3) as pool:
            reads = [pool.submit(run) for _ in range(3)]
            for number in range(2, 200):
                weight[:] = number
            stop.set()
        assert not wrong and not any(each.exception() for each in reads)
        torch.testing.assert_close(fast(x), model(x))


_CHILD = """
import sys
import torch
torch.manual_seed(0)
weight = torch.from_file({path!r}, shared=True, size=432).view(16, 3, 3, 3)
x = torch.randn(1, 3, 20, 20)
fast = torch.compile(lambda x, w: torch.conv2d(x, w).relu(), backend="iree_boo", dynamic=False)
with torch.no_grad():
    for line in sys.stdin:
        found, expected = fast(x, weight), torch.conv2d(x, weight).relu()
        print(float(weight.sum()), bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-4)), flush=True)
"""


@pytest.mark.slow
def test_what_another_process_writes_is_seen(tmp_path: Any) -> None:
    path = str(tmp_path / "weight")
    weight = np.memmap(path, np.float32, "w+", shape=(432,))
    weight[:] = 0.5
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(path=path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for step in range(4):
            weight[step * 100 + 7] = step + 3
            weight.flush()
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline().split() == [str(float(weight.sum())), "True"]
        child.stdin.close()
