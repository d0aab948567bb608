"""The models of benchmarks/models.py, in plain `torch.nn`, with random weights and statistics.

Images are N x 3 x 224 x 224 in channels-last memory, sequences N x 128 x 768. All models return one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Extents of the inputs.
IMAGE, TOKENS, HIDDEN = 224, 128, 768


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


# -- residual networks -----------------------------------------------------------------------------


class Basic(nn.Module):
    """Two 3x3 convolutions and a residual, as in ResNet-18."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3), nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x C x H x W to N x `width` x H/stride x W/stride."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a residual, as in ResNet-50; the 3x3 convolution has the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x C x H x W to N x 4 `width` x H/stride x W/stride."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A residual network for images; `depths` counts the blocks of each of its four stages."""

    def __init__(self, block: type[Basic] | type[Bottleneck], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for number in range(depth):
                stages.append(block(channels, width, 2 if stage and not number else 1))
                channels = width * block.expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """N x 3 x H x W to N x 1000."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


# -- MobileNetV2 -----------------------------------------------------------------------------------


def _normalized(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        _convolution(inputs, outputs, kernel, stride, groups), nn.BatchNorm2d(outputs), nn.ReLU6()
    )


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one, and a 1x1 convolution to fewer."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.is_residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *([_normalized(inputs, width, 1)] if expansion > 1 else []),
            _normalized(width, width, 3, stride, groups=width),
            _convolution(width, outputs, 1),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """N x C x H x W to N x `outputs` x H/stride x W/stride."""
        return x + self.layers(x) if self.is_residual else self.layers(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1."""

    #: Expansion, channels, blocks and stride of each stage.
    STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_normalized(3, 32, 3, 2)]
        channels = 32
        for expansion, outputs, blocks, stride in self.STAGES:
            for number in range(blocks):
                layers.append(InvertedResidual(channels, outputs, 1 if number else stride, expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, _normalized(channels, 1280, 1))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """N x 3 x H x W to N x 1000."""
        return self.head(self.features(x).mean((2, 3)))


# -- ConvNeXt --------------------------------------------------------------------------------------


class ConvNeXtBlock(nn.Module):
    """A 7x7 depthwise convolution, a layer norm over channels, and two linear layers with a GELU between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        """N x C x H x W to the same shape."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y)))
        return x + (self.scale * y).permute(0, 3, 1, 2)


class ConvNeXtStack(nn.Module):
    """The stem of ConvNeXt-Tiny, `depth` blocks of 96 channels, a downsampling, and `depth` blocks of 192."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 96, 4, 4),
            *(ConvNeXtBlock(96) for _ in range(depth)),
            nn.Conv2d(96, 192, 2, 2),
            *(ConvNeXtBlock(192) for _ in range(depth)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """N x 3 x H x W to N x 192 x H/8 x W/8."""
        return self.layers(x)


# -- BERT ------------------------------------------------------------------------------------------


class BertLayer(nn.Module):
    """Self-attention and two linear layers, each with a residual and a layer norm, as in BERT-base."""

    def __init__(self, hidden: int = HIDDEN, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """N x tokens x hidden to the same shape."""
        q, k, v = (
            each(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(attended))
        return self.norm2(x + self.narrow(functional.gelu(self.wide(x))))


class BertStack(nn.Module):
    """`depth` layers of BERT-base."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(BertLayer() for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        """N x tokens x hidden to the same shape."""
        return self.layers(x)


# -- examples --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A model that can be made again, always with the same weights, and its inputs."""

    name: str
    make: Callable[[], nn.Module]
    has_images: bool = True

    def model(self, seed: int = 0) -> nn.Module:
        """In evaluation mode, in f32; convolutions have their weights in channels-last memory."""
        with seeded(seed):
            model = self.make()
            if self.has_images:
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                with torch.no_grad():
                    _set_statistics(model, self.inputs(2, extent=96, seed=seed + 1))
            return model.eval()

    def inputs(self, batch: int, *, extent: int | None = None, seed: int = 1) -> Tensor:
        """Standard normal; `extent` is the height and width of images, or the number of tokens."""
        generator = torch.Generator().manual_seed(seed)
        if self.has_images:
            extent = extent or IMAGE
            images = torch.randn(batch, 3, extent, extent, generator=generator)
            return images.to(memory_format=torch.channels_last)
        return torch.randn(batch, extent or TOKENS, HIDDEN, generator=generator)

    def with_inputs(self, batch: int = 1) -> tuple[nn.Module, Tensor]:
        """The model and its inputs, as `dispatch-profiler capture` takes them."""
        return self.model(), self.inputs(batch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's random numbers from a seed, and as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _set_statistics(model: nn.Module, images: Tensor) -> None:
    """Random parameters and statistics of batch norms, near those of `images`, so that no value overflows in f16."""
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = None  # The statistics become those of this batch.
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0, 0.1)
    model.train()(images)
    for norm in norms:
        assert norm.running_mean is not None and norm.running_var is not None
        norm.momentum = 0.1
        norm.running_mean += 0.1 * torch.randn_like(norm.running_mean)
        norm.running_var *= 0.5 + torch.rand_like(norm.running_var)


#: Models whose inference is measured.
MODELS = {
    "resnet50": Example("ResNet-50", lambda: ResNet(Bottleneck, (3, 4, 6, 3))),
    "mobilenet_v2": Example("MobileNetV2", MobileNetV2),
    "convnext": Example("ConvNeXt blocks", ConvNeXtStack),
    "bert": Example("BERT layers", BertStack, has_images=False),
}
#: The model whose training is measured.
RESNET18 = Example("ResNet-18", lambda: ResNet(Basic, (2, 2, 2, 2)))

#: `dispatch-profiler capture benchmarks/_models.py:resnet50 --batch=1,8 -o resnet50.yaml`
resnet50, mobilenet_v2, convnext, bert = (each.with_inputs for each in MODELS.values())
resnet18 = RESNET18.with_inputs
