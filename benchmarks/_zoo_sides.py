"""The sides of benchmarks/zoo.py: torch, inductor, OpenVINO, ONNX Runtime and the backends of this package.

A side is made from a model and one input, and gives a function that runs the model once and returns its output.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._model_timing import BACKEND

#: Runs the model once.
Run = Callable[[], Tensor]
EAGER, INDUCTOR, FREEZING = "eager", "inductor", "freezing"
OPENVINO, ONNX_RUNTIME = "OpenVINO", "ONNX Runtime"
OURS, FROZEN = "ours", "ours frozen"
#: Sides whose instructions no variable limits.
UNLIMITED = (OPENVINO, ONNX_RUNTIME)


@dataclass(frozen=True)
class Setting:
    """What all sides of a run share."""

    threads: int
    batch: int
    #: float32 or bfloat16, as torch names them.
    dtype: str

    @property
    def type(self) -> torch.dtype:
        """The type of weights and activations."""
        return getattr(torch, self.dtype)


def sides() -> Mapping[str, Callable[[nn.Module, Tensor, Setting], Run]]:
    """Each side by its name, in the order of the tables."""
    return {
        EAGER: lambda model, x, _: lambda: model(x),
        INDUCTOR: _compiled(),
        FREEZING: _compiled(options={"freezing": True}),
        OPENVINO: _openvino,
        ONNX_RUNTIME: _onnx_runtime,
        OURS: _compiled(backend=BACKEND),
        FROZEN: _compiled(backend=BACKEND, options={"freeze": True}),
    }


def _compiled(**options: Any) -> Callable[[nn.Module, Tensor, Setting], Run]:
    def side(model: nn.Module, x: Tensor, _: Setting) -> Run:
        compiled = torch.compile(copy.deepcopy(model), dynamic=False, **options)
        return lambda: compiled(x)

    return side


def _openvino(model: nn.Module, x: Tensor, setting: Setting) -> Run:
    """OpenVINO computes in `setting.dtype` from weights in f32, as its users have them."""
    import openvino

    x = _plain(x)
    with _exportable_attention():
        converted = openvino.convert_model(model.float(), example_input=x)
    precision = {"float32": "f32", "bfloat16": "bf16"}[setting.dtype]
    compiled = openvino.compile_model(
        converted,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": setting.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        },
    )
    values = x.numpy()
    return lambda: torch.from_numpy(compiled(values)[0])


def _onnx_runtime(model: nn.Module, x: Tensor, setting: Setting) -> Run:
    import onnxruntime

    if setting.dtype != "float32":
        raise NotImplementedError("its CPU provider has no kernels for bf16")
    x = _plain(x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with warnings.catch_warnings(), _exportable_attention():
            warnings.simplefilter(
                "ignore"
            )  # torch's newer exporter needs a library more, for the same graph.
            torch.onnx.export(model.float(), (x,), path, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = setting.threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


@contextmanager
def _exportable_attention() -> Iterator[None]:
    """Attention as operators that other tools know, instead of the operator that torch uses for inference."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


def _plain(x: Tensor) -> Tensor:
    """An input in row-major memory and f32: OpenVINO and ONNX Runtime choose their own layouts."""
    return (x.float() if x.is_floating_point() else x).contiguous()
