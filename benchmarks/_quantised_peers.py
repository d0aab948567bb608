"""Sides of benchmarks/quantised.py that quantise the layers themselves: OpenVINO with nncf, and ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Runs the layers once.
Run = Callable[[], Tensor]
#: ONNX Runtime multiplies weights of 4 bits by activations of i8 with this level, as its own models do.
_I8_ACTIVATIONS = 4


def openvino_side(module: nn.Module, x: Tensor, kind: str, group: int, threads: int, precision: str) -> Run:
    """The layers with weights that nncf compressed. Raises ImportError if one of both is not installed."""
    import nncf
    import openvino

    modes = {
        "weights": {"mode": nncf.CompressWeightsMode.INT8_SYM},
        "dynamic": {"mode": nncf.CompressWeightsMode.INT8_SYM},
        "int4": {
            "mode": nncf.CompressWeightsMode.INT4_ASYM,
            "group_size": group,
            "ratio": 1.0,
            "all_layers": True,
        },
    }
    model = nncf.compress_weights(openvino.convert_model(module.float(), example_input=x), **modes[kind])
    model.reshape({model.inputs[0]: list(x.shape)})
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    if kind == "weights":
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    request = openvino.compile_model(model, "CPU", options).create_infer_request()
    values = x.numpy()
    return lambda: torch.from_numpy(
        next(iter(request.infer([values], share_inputs=True, share_outputs=True).values()))
    )


def onnx_runtime_side(
    module: nn.Module, x: Tensor, kind: str, group: int, threads: int, precision: str
) -> Run:
    """The layers in f32 with weights that ONNX Runtime's tools quantised. Raises ImportError if they are not installed."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    if precision != "f32":
        raise NotImplementedError("its CPU provider has no kernels for bf16")
    with tempfile.TemporaryDirectory() as folder:
        plain, quantised = (Path(folder) / f"{name}.onnx" for name in ("plain", "quantised"))
        # Products with the weight as it is multiplied, which the tools know.
        torch.onnx.export(_Products(module), (x,), plain, dynamo=False)
        if kind == "dynamic":
            quantize_dynamic(plain, quantised, per_channel=True, weight_type=QuantType.QInt8)
        else:
            options = DefaultWeightOnlyQuantConfig(
                block_size=group,
                is_symmetric=kind == "weights",
                accuracy_level=_I8_ACTIVATIONS if kind == "int4" else None,
                bits=4 if kind == "int4" else 8,
            )
            quantizer = MatMulNBitsQuantizer(onnx.load(plain), algo_config=options)
            quantizer.process()
            quantizer.model.save_model_to_file(str(quantised))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(quantised, settings, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


class _Products(nn.Module):
    """Linear layers as products and sums."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.children():
            x = x @ layer.weight.T + layer.bias if isinstance(layer, nn.Linear) else layer(x)
        return x
