"""The models whose operations the shipped libraries cover, and their operations, without weights and without running them.

    name and use -> an architecture of fake tensors, which have shapes and no values -> `capture` -> a workload

torchvision publishes no counts of downloads, and those of timm and transformers change every month. So the list follows
from the documentation of these projects: of torchvision, one or two sizes of each family in its table of classification
models, which nearly all of its examples and of the frameworks' benchmarks use; of timm, the families that its README names
and that torchvision lacks, in the sizes that have weights for 224 x 224 pixels; of transformers, the published sizes of
BERT, GPT-2, Llama and Whisper. Models that repeat the shapes of another one are there because the number of models that
have an operation decides when it is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks._zoo_models import architecture
from dispatch_profiler.boo.capture import capture
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.operations import Operation
from dispatch_profiler.workloads import Workload, merged

_TORCHVISION = (
    *("alexnet", "vgg16", "resnet18", "resnet50", "resnet101", "wide_resnet50_2", "resnext50_32x4d"),
    *("densenet121", "googlenet", "inception_v3", "squeezenet1_1", "shufflenet_v2_x1_0", "mnasnet1_0"),
    *("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_v2_s"),
    *("regnet_y_800mf", "convnext_tiny", "vit_b_16", "vit_b_32", "vit_l_16", "swin_t"),
)
_TIMM = (
    *("mobilenetv3_small_100", "mobilenetv4_conv_small", "resnet50d", "regnety_032", "ghostnet_100"),
    *("convnextv2_nano", "vit_tiny_patch16_224", "vit_small_patch16_224", "mixer_b16_224"),
)


@dataclass(frozen=True)
class Text:
    """A model of transformers: its kind, the fields of its configuration, and for each capture the inputs' shapes."""

    kind: str
    fields: Mapping[str, int]
    maker: str = "AutoModel"
    #: Tokens of a sequence in each capture: 1 is a step of generation, without what the cache has.
    tokens: Sequence[int] = (128,)
    #: Arguments that are no tensors.
    options: Mapping[str, Any] = field(default_factory=dict)


def _bert(width: int, layers: int, heads: int) -> Text:
    return Text("bert", {**_layered(width, layers, heads), "intermediate_size": 4 * width})


def _gpt2(width: int, layers: int, heads: int) -> Text:
    return _causal("gpt2", {"n_embd": width, "n_layer": layers, "n_head": heads})


def _llama(width: int, layers: int, heads: int, inner: int, keys: int, vocabulary: int = 128256) -> Text:
    extents = {"intermediate_size": inner, "num_key_value_heads": keys, "vocab_size": vocabulary}
    return _causal("llama", {**_layered(width, layers, heads), **extents})


def _layered(width: int, layers: int, heads: int) -> dict[str, int]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


def _causal(kind: str, fields: Mapping[str, int]) -> Text:
    """A prompt and a step of generation; only the last token has logits, as in `generate`."""
    options = {"logits_to_keep": 1, "use_cache": False}
    return Text(kind, fields, "AutoModelForCausalLM", (128, 1), options)


def _whisper(width: int, layers: int, heads: int, bands: int = 80) -> Text:
    """30 seconds of sound, and the first step of the decoder."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    fields = {"d_model": width, "num_mel_bins": bands, **sides}
    return Text("whisper", fields, tokens=(1,), options={"use_cache": False})


_TEXT: Mapping[str, Text] = {
    "bert_minilm_l6": _bert(384, 6, 12),
    "bert_base": _bert(768, 12, 12),
    "bert_large": _bert(1024, 24, 16),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2_medium": _gpt2(1024, 24, 16),
    "gpt2_large": _gpt2(1280, 36, 20),
    "gpt2_xl": _gpt2(1600, 48, 25),
    "llama_3_2_1b": _llama(2048, 16, 32, 8192, 8),
    "llama_3_2_3b": _llama(3072, 28, 24, 8192, 8),
    "llama_2_7b": _llama(4096, 32, 32, 11008, 32, 32000),
    "llama_3_8b": _llama(4096, 32, 32, 14336, 8),
    "whisper_tiny": _whisper(384, 4, 6),
    "whisper_base": _whisper(512, 6, 8),
    "whisper_small": _whisper(768, 12, 12),
    "whisper_medium": _whisper(1024, 24, 16),
    "whisper_large_v3": _whisper(1280, 32, 20, 128),
}
#: Every model, by the name of its file -> how it is made.
MODELS: Mapping[str, Text | str] = {
    **{f"torchvision_{each}": f"torchvision:{each}" for each in _TORCHVISION},
    **{f"timm_{each}": f"timm:{each}" for each in _TIMM},
    **_TEXT,
}


@dataclass(frozen=True)
class Use:
    """How models run on a kind of device: types and batches of images, and of sequences."""

    image_type: torch.dtype
    images: int
    text_type: torch.dtype
    sequences: int


#: CPUs answer single requests in f32; GPUs batches in the types that their matrix cores have. A step of a language model has
#: one sequence on both.
USES: Mapping[str, Use] = {
    "cpu": Use(torch.float32, 1, torch.float32, 1),
    "gpu": Use(torch.float16, 32, torch.bfloat16, 8),
}


def operations_of(name: str, use: Use) -> Workload:
    """The operations of a model of `MODELS` with constant weights, and how often each runs in a call."""
    model = MODELS[name]
    runs = _of_text(model, use) if isinstance(model, Text) else [_of_images(model, use)]
    captured = (
        capture(module, inputs, fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, origin=name)
        for module, inputs in runs
    )
    return merged(
        [entry for each in captured for entry in each.workload.entries if _is_tuned(entry.operation)]
    )


def _is_tuned(operation: Operation) -> bool:
    """False for products of a batch, which are linear layers of permuted rows in these models.

    torch expands their weight to the batch. A kernel would read a copy of the weight for each product.
    """
    product = operation.product
    return product is None or product.batch == 1


def _of_images(name: str, use: Use) -> tuple[nn.Module, Any]:
    module, inputs = architecture(name)
    module = module.eval().to(use.image_type).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fake = _fakes()
    return _faked(module, fake), fake(inputs(use.images).to(use.image_type))


def _of_text(text: Text, use: Use) -> list[tuple[nn.Module, Any]]:
    return [_of_tokens(text, use, tokens) for tokens in text.tokens]


def _of_tokens(text: Text, use: Use, tokens: int) -> tuple[nn.Module, Any]:
    import transformers

    config = transformers.AutoConfig.for_model(text.kind, **text.fields)
    with torch.device("meta"):
        module = getattr(transformers, text.maker).from_config(config).eval().to(use.text_type)
    batch = use.sequences if text.maker == "AutoModel" else 1
    inputs = {"input_ids": torch.zeros(batch, tokens, dtype=torch.long)}
    if text.kind == "whisper":
        frames = 2 * config.max_source_positions
        inputs = {
            "input_features": torch.empty(batch, config.num_mel_bins, frames, dtype=use.text_type),
            "decoder_input_ids": inputs["input_ids"],
        }
    fake = _fakes()
    return _faked(module, fake), {**{key: fake(each) for key, each in inputs.items()}, **text.options}


# -- fake tensors ----------------------------------------------------------------------------------


def _fakes() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that makes a fake tensor on the CPU for a tensor on any device."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    return fake


def _faked(module: nn.Module, fake: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """`module` with a fake tensor in place of each parameter and buffer."""
    for each in module.modules():
        for name, parameter in each.named_parameters(recurse=False):
            each._parameters[name] = nn.Parameter(fake(parameter.detach()), requires_grad=False)
        for name, buffer in each.named_buffers(recurse=False):
            each._buffers[name] = fake(buffer)
    return module
