"""Models for tests of `export_model`, and calls of the functions in C that their packages call."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS, GLUE, FusionSchema
from dispatch_profiler.boo.model_export.fused_model import FusedModel, fused
from dispatch_profiler.boo.model_export.native_library import check_tools
from dispatch_profiler.boo.model_export.operators import RegionOperator
from dispatch_profiler.boo.model_export.traced_model import traced

#: torch's conversions of tensors from and to its C interface.
AOTI: Any = vars(torch)["_C"]._aoti
SCHEMA: FusionSchema = BOO_FUSIONS_WITH_MATRIX_PRODUCTS.without(GLUE)


class SampleNet(nn.Module):
    """Two convolutions, one with a batch norm and one with a residual; a layer norm of a scaled mean, and a product.

    The results are a tree with numbers and None, and one of them is an input.
    """

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.rows = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, 32)
        self.register_buffer("table", torch.arange(float(channels)))
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> dict[str, Any]:
        """N x 3 x H x W."""
        image = torch.relu(self.norm(self.stem(x)))
        image = torch.relu(self.body(image) + image)
        mean = image.mean((2, 3)) * torch.tensor(2.0) + self.table
        mean = mean if scale is None else mean * scale
        return {"classes": self.head(self.rows(mean)), "count": 3, "image": image, "nothing": None, "x": x}


def sample(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model in evaluation mode and its inputs, the same in each call."""
    torch.manual_seed(0)
    model = SampleNet().eval().to(dtype)
    return model, {"x": torch.randn(2, 3, 8, 8).to(dtype), "scale": torch.rand(16).to(dtype)}


def fused_in(folder: Path, model: nn.Module, inputs: Any) -> FusedModel:
    """The model with operators for all regions that have a kernel."""
    return fused(traced(model, inputs), SCHEMA, None, folder, check_tools())


class CalledOperators:
    """The functions of a model's operators, in a shared library beside torch's."""

    def __init__(self, model: FusedModel) -> None:
        folder, library = model.library.folder, model.library.folder / "called.so"
        model.library.archive("called", model.operators, model.constants)
        torch_libraries = Path(torch.__file__).parent / "lib"
        whole = ["-Wl,--whole-archive", "libcalled.a", "-Wl,--no-whole-archive", f"-L{torch_libraries}"]
        command = [check_tools(), "-shared", "-fopenmp", "-o", str(library), *whole, "-ltorch_cpu", "-lm"]
        subprocess.run(command, cwd=folder, check=True)
        self.functions = ctypes.CDLL(str(library))

    def call(self, operator: RegionOperator, *tensors: torch.Tensor) -> list[torch.Tensor] | None:
        """The tensors that the operator returns; None if it fails."""
        results = [ctypes.c_void_p() for _ in operator.returned]
        handles = [ctypes.c_void_p(_pointer(each)) for each in tensors]
        function = getattr(self.functions, operator.symbol)
        if function(*handles, *map(ctypes.byref, results)):
            return None
        steal: Callable[[Any], torch.Tensor] = AOTI.alloc_tensor_by_stealing_from_void_ptr
        return [steal(_capsule(each)) for each in results]


def _pointer(tensor: torch.Tensor) -> int:
    capsule = AOTI.unsafe_alloc_void_ptr_from_tensor(tensor)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, None))


def _capsule(pointer: ctypes.c_void_p) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(pointer, None, None)
