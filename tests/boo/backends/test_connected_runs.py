"""Models whose regions are connected by programs: one run, with the results and strides of eager torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import Block, check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.fusion.execute import calls
from dispatch_profiler.boo.fusion.programs import importing, windows
from dispatch_profiler.boo.fusion.schema import (
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
)
from dispatch_profiler.errors import CompilerError

STRICT = backend(strict=True)


class Gated(nn.Module):
    """Two blocks with a pool between them, whose result is scaled by its mean; the pool is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Any) -> Any:
        y = functional.max_pool2d(self.first(x), 3, 2, 1)
        z = self.second(y)
        return y, z * z.mean((2, 3), keepdim=True).sigmoid()


class Dense(nn.Module):
    """Blocks that read what all blocks before them computed, as in a DenseNet; then half of the shuffled channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first = Block()
        widths = [16 + 4 * block for block in range(blocks)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width).eval() for width in widths)
        self.convolutions = nn.ModuleList(nn.Conv2d(width, 4, 3, padding=1) for width in widths)
        self.last = nn.Conv2d(8 + 2 * blocks, 4, 1)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        parts = [y, y]
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            parts.append(convolution(norm(torch.cat(parts, 1)).relu()))
        shuffled = functional.channel_shuffle(torch.cat(parts, 1), 2)
        return self.last(shuffled.chunk(2, 1)[0]).sum((2, 3))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The kinds of operations of each run that was launched."""
    found: list[list[str]] = []
    launch = calls.RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        found.append([step.operation.kind for step, _ in self.spec.steps])
        return launch(self, *inputs)

    monkeypatch.setattr(calls.RunCall, "__call__", note)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_model_is_one_run(steps: list[list[str]], memory_format: torch.memory_format) -> None:
    model = Gated().eval().to(memory_format=memory_format)
    x = torch.randn(2, 8, 9, 10).to(memory_format=memory_format)
    check_equals_eager(model, STRICT, x)
    assert steps == [["conv2d", "conv2d", "program", "conv2d", "conv2d", "program"]]


@pytest.mark.parametrize(
    ("blocks", "memory_format"),
    [
        (1, torch.channels_last),
        *(
            pytest.param(2, each, marks=pytest.mark.slow)
            for each in (torch.channels_last, torch.contiguous_format)
        ),
    ],
)
def test_joined_images_do_not_end_a_run(
    steps: list[list[str]], blocks: int, memory_format: torch.memory_format
) -> None:
    model = Dense(blocks).eval().to(memory_format=memory_format)
    check_equals_eager(model, STRICT, torch.randn(2, 8, 6, 6).to(memory_format=memory_format))
    dense = ["program", "conv2d"]
    assert steps == [["conv2d", "conv2d", *dense * (blocks + 1), "program"]]


@pytest.mark.slow
def test_a_schema_may_leave_them_to_torch(steps: list[list[str]]) -> None:
    schema = DEFAULT_SUPPORTED_BOO_FUSIONS.without("glue")
    check_equals_eager(Gated().eval(), backend(fusion_schema=schema), torch.randn(2, 8, 9, 10))
    assert steps == [["conv2d"] * 2] * 2


def test_a_program_that_cannot_be_imported_is_left_to_torch(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_pools(program: Any, function: str) -> str:
        raise CompilerError("planted")

    monkeypatch.setattr(windows, "windows_text", without_pools)
    caplog.set_level(logging.WARNING, "dispatch_profiler.boo")
    # Of other sizes than above: what is compiled is not imported again. The first block is that of other tests.
    check_equals_eager(Gated().eval(), backend(), torch.randn(2, 8, 6, 6))
    assert steps == [["conv2d"] * 2, ["conv2d", "conv2d", "program"]]
    assert caplog.text.count("planted") == 1


@pytest.mark.slow
def test_training_has_none(steps: list[list[str]]) -> None:
    model, x = Gated().train(), torch.randn(2, 8, 9, 10)
    results = torch.compile(model, backend=backend(), dynamic=False)(x)
    sum(each.sum() for each in results).backward()  # type: ignore[union-attr]
    assert all("program" not in each for each in steps)


@pytest.mark.slow
def test_explain_lists_them() -> None:
    with torch.no_grad():
        found = explain(Gated().eval(), [torch.randn(2, 8, 9, 10)], measure=None)
    programs = [each for each in found.regions if each.root == "glue"]
    assert [each.nodes[0] for each in programs] == ["max_pool2d_with_indices", "mean"]
    assert all(each.is_fused for each in programs)
    assert all(each.kind == "conv2d" for each in found.operations)


class Windows(nn.Module):
    """A layer of a Swin transformer: attention written out, in windows that are shifted, with a bias for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.last = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.distances = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("places", torch.randn(49, 2))
        self.register_buffer("numbers", torch.randint(0, 49, (256,)))

    def forward(self, x: Any) -> Any:
        """N x 8 x 8 x 16."""
        moved = functional.pad(torch.roll(self.norm(x), (-2, -2), (1, 2)), (0, 0, 0, 0, 0, 0))
        windows = moved.view(-1, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16)
        query, key, value = self.qkv(windows).view(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = functional.normalize(query, dim=-1) @ functional.normalize(key, dim=-1).transpose(-2, -1)
        bias = self.distances(self.places)[self.numbers].view(16, 16, 2).permute(2, 0, 1)
        weights = functional.dropout((scores + bias).softmax(-1), 0.1, training=False)
        y = (weights @ value).transpose(1, 2).reshape(-1, 2, 2, 4, 4, 16).permute(0, 1, 3, 2, 4, 5)
        return x + functional.dropout(
            torch.roll(self.last(y.reshape(-1, 8, 8, 16)), (2, 2), (1, 2)), 0.1, False
        )


def test_attention_written_out_in_shifted_windows_is_a_run(steps: list[list[str]]) -> None:
    """A program is the attention. What follows from frozen parameters alone is not part of the run."""
    schema = BOO_FUSIONS_WITH_MATRIX_PRODUCTS
    model = Windows().eval()
    check_equals_eager(model, backend(fusion_schema=schema, freeze=True), torch.randn(1, 8, 8, 16))
    (kinds,) = steps
    assert [each for each in kinds if each != "program"] == ["layer_norm", "matmul", "matmul"]


class Classifier(nn.Module):
    """A block, its mean, and a matrix product with this number of results."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(x).mean((2, 3)))


@pytest.mark.slow
def test_a_small_product_at_the_end_belongs_to_the_run(steps: list[list[str]]) -> None:
    check_equals_eager(Classifier(5).eval(), STRICT, torch.randn(1, 8, 9, 10))
    assert steps == [["conv2d", "conv2d", "program", "matmul"]]


def test_a_large_product_is_left_to_torch(steps: list[list[str]]) -> None:
    check_equals_eager(Classifier(400).eval(), STRICT, torch.randn(2, 8, 6, 6))
    assert [each[:2] for each in steps] == [["conv2d", "conv2d"]]
    assert "matmul" not in steps[0]


def test_a_program_with_wrong_results_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lowered = importing.linalg_text

    def wrong(program: Any, function: str) -> str:
        return lowered(program, function).replace("arith.subf", "arith.addf")

    def model(x: Any) -> Any:
        y = functional.conv2d(x, torch.ones(4, 4, 1, 1))
        return y.exp() - functional.avg_pool2d(y, 1)

    monkeypatch.setattr(importing, "linalg_text", wrong)
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path))  # for this kernel must not be found elsewhere
    caplog.set_level(logging.WARNING, "dispatch_profiler.boo")
    x = torch.randn(1, 4, 5, 7)
    check_equals_eager(model, backend(), x)
    assert caplog.text.count("differ from torch's") == 1
    monkeypatch.setattr(importing, "linalg_text", lowered)
    check_equals_eager(model, backend(), x)  # the cache keeps the decision
    assert caplog.text.count("differ from torch's") == 2
