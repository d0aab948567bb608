"""The models of benchmarks/zoo.py: torchvision's, timm's and transformers' own, and a U-Net for volumes; random weights.

Names say where a model comes from: `torchvision:resnet50`, `timm:mobilevit_s`, `transformers:bert:4` (with 4 layers),
`unet3d`. `drawn` takes names from all that the three libraries list.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._models import seeded

#: The models of the first comparison with other tools (November 2026), and the extent of the images of one of them.
NAMES = (
    *(f"torchvision:{each}" for each in ("resnet50", "resnet18", "vgg16_bn", "convnext_tiny")),
    "torchvision:segmentation/fcn_resnet50@160",
    *(f"torchvision:{each}" for each in ("densenet121", "regnet_y_800mf", "efficientnet_b0")),
    "torchvision:mobilenet_v3_large",
    "timm:mobilevit_s@224",
    "torchvision:vit_b_16",
    "transformers:bert:4",
    "transformers:gpt2:3",
    "unet3d",
)
#: `drawn` leaves out models above these.
MOST_PARAMETERS, MOST_FLOPS = 120e6, 40e9
#: Tokens of a sequence, and layers of drawn models of transformers, whose own number often exceeds MOST_PARAMETERS.
TOKENS, LAYERS = 128, 4
#: Names that configurations of transformers have for the number of layers.
LAYER_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
#: Lists of transformers: models of text, and of images.
TRANSFORMERS_LISTS = (
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
)


@dataclass(frozen=True)
class ZooModel:
    """A model in evaluation mode, in f32, whose forward takes and returns one tensor."""

    name: str
    module: nn.Module
    #: Inputs of a batch.
    inputs: Callable[[int], Tensor]


def zoo_model(name: str, seed: int = 0) -> ZooModel:
    """The model of a name, always with the same weights. Raises ValueError for an unknown name."""
    with seeded(seed):
        module, inputs = architecture(name)
        module = SingleTensor(module)
        _fill_zeros(module)
        if inputs(1).dim() == 4:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _set_statistics(module, inputs(2))
    return ZooModel(name, module.eval(), inputs)


def architecture(name: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """The module of a name as its library makes it, and the inputs of a batch. Raises ValueError for an unknown name."""
    library, _, rest = name.partition(":")
    return _made(library, rest)


def drawn(count: int, seed: int) -> list[str]:
    """Names of `count` models that the seed draws, from each library in turn; too large ones are passed over."""
    pools = [_shuffled(names, seed) for names in _lists().values()]
    chosen: list[str] = []
    while len(chosen) < count and any(pools):
        for pool in pools:
            name = next((each for each in _taken(pool) if _is_small(each)), None)
            if name is not None and len(chosen) < count:
                chosen.append(name)
    return chosen


def _shuffled(names: Sequence[str], seed: int) -> list[str]:
    return random.Random(seed).sample(sorted(names), len(names))


def _taken(pool: list[str]) -> Iterator[str]:
    while pool:
        yield pool.pop()


def _lists() -> dict[str, list[str]]:
    """The names that each library lists."""
    vision, timm, transformers = _torchvision(), _library("timm"), _library("transformers")
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = {
        config.model_type
        for each in TRANSFORMERS_LISTS
        for config in getattr(auto, each)
        if config in transformers.CONFIG_MAPPING.values()
    }
    return {
        "torchvision": [f"torchvision:{each}" for each in vision.models.list_models(module=vision.models)],
        "timm": [f"timm:{each}" for each in timm.list_models()],
        "transformers": [f"transformers:{each}:{LAYERS}" for each in kinds],
    }


def _is_small(name: str) -> bool:
    """Whether a model fits the limits of `drawn`; a model that does not run with one input of its library does not."""
    library, _, rest = name.partition(":")
    try:
        with (
            suppress(NotImplementedError),
            torch.device("meta"),
        ):  # Some models read their weights when they are made.
            if _parameters(_made(library, rest)[0]) > MOST_PARAMETERS:
                return False
        module, inputs = _made(library, rest)
        counter = FlopCounterMode(display=False)
        with counter, torch.inference_mode():
            SingleTensor(module).eval()(inputs(1))
    except (
        Exception
    ) as error:  # Anything that a library's model may raise: it is passed over, with its reason.
        print(
            f"{name}: not drawn: {type(error).__name__}: {str(error).partition(chr(10))[0][:100]}", flush=True
        )
        return False
    return _parameters(module) <= MOST_PARAMETERS and counter.get_total_flops() <= MOST_FLOPS


def _parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


# -- libraries -------------------------------------------------------------------------------------


def _made(library: str, rest: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A module and its inputs; on the current default device."""
    makers: Mapping[str, Callable[[str], tuple[nn.Module, Callable[[int], Tensor]]]] = {
        "torchvision": _of_torchvision,
        "timm": _of_timm,
        "transformers": _of_transformers,
        "unet3d": lambda _: (UNet3d(), _normal(1, 32, 64, 64)),
    }
    if library not in makers:
        raise ValueError(f"{library}: not one of {', '.join(makers)}")
    return makers[library](rest)


def _of_torchvision(rest: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """`resnet50`, `segmentation/fcn_resnet50@160`: a model and the height and width of its images."""
    name, _, extent = rest.partition("@")
    options: dict[str, Any] = {"weights_backbone": None} if "/" in name else {}
    if "inception" in name or "googlenet" in name:
        options = {"init_weights": False, "aux_logits": False}
    model = _torchvision().models.get_model(name.rpartition("/")[2], weights=None, **options)
    return model, _normal(3, *[int(extent or (299 if "inception" in name else 224))] * 2)


def _of_timm(rest: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """`mobilevit_s@224`: the images have the model's own size unless one is named."""
    name, _, extent = rest.partition("@")
    model = _library("timm").create_model(name, pretrained=False)
    channels, height, width = model.default_cfg["input_size"]
    return model, _normal(channels, int(extent or height), int(extent or width))


def _of_transformers(rest: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """`bert:4`: the default configuration with so many layers."""
    kind, _, layers = rest.partition(":")
    transformers = _library("transformers")
    config = transformers.AutoConfig.for_model(kind)
    for field in LAYER_FIELDS:
        if layers and isinstance(getattr(config, field, None), int):
            setattr(config, field, int(layers))
    config.use_cache = False
    model = transformers.AutoModel.from_config(config)
    if model.main_input_name == "pixel_values":
        extent = config.image_size
        height, width = extent if isinstance(extent, (list, tuple)) else (extent, extent)
        return model, _normal(config.num_channels, height, width)
    return model, _tokens(config.vocab_size)


def _normal(*shape: int) -> Callable[[int], Tensor]:
    """Inputs of a batch, standard normal, images in channels-last memory."""

    def inputs(batch: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            values = torch.randn(batch, *shape)
        return values.to(memory_format=torch.channels_last) if len(shape) == 3 else values

    return inputs


def _tokens(vocabulary: int) -> Callable[[int], Tensor]:
    """Sequences of TOKENS tokens."""

    def inputs(batch: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return torch.randint(0, vocabulary, (batch, TOKENS))

    return inputs


def _library(name: str) -> ModuleType:
    """A module of the extra `bench`."""
    try:
        if name != "torchvision":
            _torchvision()  # timm imports it, and transformers if it is there.
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -e '.[bench]'") from error


def _torchvision() -> ModuleType:
    """torchvision, also without its own C++ operators, which its wheels lack beside a build of torch for CPUs.

    It describes these operators to torch when it is imported, and torch raises for operators that do not exist.
    """
    register = torch.library.register_fake

    def register_known(operator: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return register(operator, *arguments, **options)

    torch.library.register_fake = register_known
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -e '.[bench]'") from error
    finally:
        torch.library.register_fake = register


# -- modules ---------------------------------------------------------------------------------------


class SingleTensor(nn.Module):
    """A model that returns its first tensor alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        result = self.model(x)
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
        return result


class UNet3d(nn.Module):
    """Three levels of two 3x3x3 convolutions with batch norms, down to a quarter of each extent and up again."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        wide, deep = 2 * channels, 4 * channels
        self.down1, self.down2 = self._level(1, channels), self._level(channels, wide)
        self.bottom = self._level(wide, deep)
        self.up2, self.up1 = nn.ConvTranspose3d(deep, wide, 2, 2), nn.ConvTranspose3d(wide, channels, 2, 2)
        self.level2, self.level1 = self._level(2 * wide, wide), self._level(2 * channels, channels)
        self.head = nn.Conv3d(channels, 3, 1)
        self.pool = nn.MaxPool3d(2)

    @staticmethod
    def _level(inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for count in (inputs, outputs):
            layers += [
                nn.Conv3d(count, outputs, 3, padding=1, bias=False),
                nn.BatchNorm3d(outputs),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """N x 1 x D x H x W to N x 3 x D x H x W; the extents are multiples of 4."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        up = self.level2(torch.cat((self.up2(self.bottom(self.pool(second))), second), 1))
        return self.head(self.level1(torch.cat((self.up1(up), first), 1)))


def _fill_zeros(module: nn.Module) -> None:
    """Random weights instead of zeros, as some heads have at first: a result of zeros would hide every error."""
    with torch.no_grad():
        for each in module.parameters():
            if each.dim() > 1 and not each.any():
                each.normal_(std=0.02)


def _set_statistics(module: nn.Module, inputs: Tensor) -> None:
    """Statistics of batch norms from a batch, so that values neither vanish nor overflow through many layers."""
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # The statistics become those of this batch.
    with torch.no_grad():
        module.train()(inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
