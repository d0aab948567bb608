"""The sides of benchmarks/decoding.py: eager torch, inductor, the backends of this package, OpenVINO and llama.cpp.

Each side has a Llama with the same random weights. It reads a prompt, and then computes one token after the other with
a cache of keys and values.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._model_timing import BACKEND

#: Tokens of the vocabulary, and of the cache.
VOCABULARY, CACHE = 32_000, 512
#: Weights that share a scale, where they have 4 bits.
GROUP = 32
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
EAGER = "eager"


@dataclass(frozen=True)
class Setting:
    """What all sides of a run share: threads, layers, the type of activations, and bits of weights (0: as activations)."""

    threads: int
    layers: int
    dtype: str
    bits: int

    @cached_property
    def configuration(self) -> Any:
        """The sizes of Llama 3.2 with 1 B parameters, with a smaller vocabulary."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=self.layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=VOCABULARY,
            max_position_embeddings=CACHE,
            tie_word_embeddings=False,
        )

    def model(self) -> Any:
        """The model with random weights in the type of activations."""
        from transformers import LlamaForCausalLM

        torch.manual_seed(0)
        return LlamaForCausalLM(self.configuration).eval().to(TYPES[self.dtype])


class Decoder(ABC):
    """A model that decodes."""

    @abstractmethod
    def read(self, prompt: Tensor) -> Tensor:
        """Begin with a prompt of 1 x n tokens. Returns the logits of the next token."""

    @abstractmethod
    def next(self, token: int) -> Tensor:
        """The logits that follow one more token."""


class TorchDecoder(Decoder):
    """transformers' model with a static cache; `compile_` compiles the step that computes one token."""

    def __init__(
        self, setting: Setting, compile_: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
    ) -> None:
        self._configuration = setting.configuration
        self._model = setting.model()
        if setting.bits:
            _quantise(self._model, setting.bits)
        self._step = compile_(self._compute)

    def _compute(self, tokens: Tensor, position: Tensor, cache: Any) -> Tensor:
        logits: Tensor = self._model(
            input_ids=tokens, past_key_values=cache, cache_position=position, position_ids=position[None]
        ).logits
        return logits[0, -1]

    def read(self, prompt: Tensor) -> Tensor:
        from transformers import StaticCache

        self._cache = StaticCache(config=self._configuration, max_cache_len=CACHE)
        self._position = prompt.shape[1]
        with torch.no_grad():
            return self._compute(prompt, torch.arange(self._position), self._cache)

    def next(self, token: int) -> Tensor:
        position = torch.tensor([self._position])
        self._position += 1
        with torch.no_grad():
            return self._step(torch.tensor([[token]]), position, self._cache)


def _quantise(model: Any, bits: int) -> None:
    import torchao.quantization
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    made = {
        4: lambda: PrototypeInt4WeightOnlyConfig(group_size=GROUP),
        8: torchao.quantization.Int8WeightOnlyConfig,
    }
    torchao.quantization.quantize_(model, made[bits]())


class OpenVinoDecoder(Decoder):
    """The model as optimum-intel exports and compresses it, called without `generate`."""

    def __init__(self, setting: Setting) -> None:
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        compression = {
            0: None,
            4: OVWeightQuantizationConfig(bits=4, sym=False, group_size=GROUP, ratio=1.0, all_layers=True),
            8: OVWeightQuantizationConfig(bits=8, sym=False),
        }[setting.bits]
        options = {
            "INFERENCE_NUM_THREADS": setting.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": setting.dtype,
        }
        with tempfile.TemporaryDirectory() as folder:
            setting.model().save_pretrained(folder)
            model = OVModelForCausalLM.from_pretrained(
                folder,
                export=True,
                load_in_8bit=False,
                quantization_config=compression,
                ov_config=options,
                device="CPU",
            )
        model.compile()
        self._request = model.request

    def read(self, prompt: Tensor) -> Tensor:
        self._request.reset_state()
        self._length = 0
        return self._infer(prompt)

    def next(self, token: int) -> Tensor:
        return self._infer(torch.tensor([[token]]))

    def _infer(self, tokens: Tensor) -> Tensor:
        first, self._length = self._length, self._length + tokens.shape[1]
        made = self._request.infer(
            {
                "input_ids": tokens.numpy(),
                "attention_mask": torch.ones(1, self._length, dtype=torch.int64).numpy(),
                "position_ids": torch.arange(first, self._length)[None].numpy(),
                "beam_idx": torch.zeros(1, dtype=torch.int32).numpy(),
            },
            share_inputs=True,
            share_outputs=True,
        )
        return torch.from_numpy(next(iter(made.values()))[0, -1])


class LlamaCppDecoder(Decoder):
    """llama.cpp with the model in its own format: weights of 4 bits as Q4_1, of 8 bits as Q8_0."""

    def __init__(self, setting: Setting) -> None:
        import llama_cpp

        from benchmarks._gguf import write_llama

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_llama(setting.model(), path, {0: setting.dtype, 4: "q4_1", 8: "q8_0"}[setting.bits])
            self._llama = llama_cpp.Llama(
                str(path),
                n_ctx=CACHE,
                n_threads=setting.threads,
                n_threads_batch=setting.threads,
                verbose=False,
            )

    def read(self, prompt: Tensor) -> Tensor:
        self._llama.reset()
        self._llama.eval(prompt[0].tolist())
        return self._logits()

    def next(self, token: int) -> Tensor:
        self._llama.eval([token])
        return self._logits()

    def _logits(self) -> Tensor:
        import numpy as np

        pointer = self._llama._ctx.get_logits()
        return torch.from_numpy(np.ctypeslib.as_array(pointer, shape=(VOCABULARY,)).copy())


def sides() -> Mapping[str, Callable[[Setting], Decoder]]:
    """Each side by its name, in the order of the tables."""
    return {
        EAGER: partial(TorchDecoder, compile_=lambda step: step),
        "inductor": _compiled(),
        "freezing": _compiled(options={"freezing": True}),
        "OpenVINO": OpenVinoDecoder,
        "llama.cpp": LlamaCppDecoder,
        "ours": _compiled(backend=BACKEND),
        "ours frozen": _compiled(backend=BACKEND, options={"freeze": True}),
    }


def _compiled(**options: Any) -> Callable[[Setting], Decoder]:
    return partial(TorchDecoder, compile_=partial(torch.compile, dynamic=False, **options))
