"""`torch.nn.Conv1d`, `Conv2d` and `Conv3d`, computed by `boo_conv`.

They derive from torch's modules: arguments (and `freeze`), initialization, parameters, `state_dict` and `repr` are the same, and code
that looks for convolutions finds them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops import boo_conv


class _BooConv:
    """The forward of the modules below, in place of the one of torch's modules."""

    #: See `boo_conv`.
    freeze: bool | None = None

    def __init__(self, *args: Any, freeze: bool | None = None, **options: Any) -> None:
        """The arguments of torch's module, and `freeze`, which is passed to `boo_conv`."""
        super().__init__(*args, **options)
        self.freeze = freeze

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return boo_conv(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, freeze=self.freeze
        )


class BooConv1d(_BooConv, torch.nn.Conv1d):
    """`torch.nn.Conv1d`, computed by `boo_conv`."""


class BooConv2d(_BooConv, torch.nn.Conv2d):
    """`torch.nn.Conv2d`, computed by `boo_conv`."""


class BooConv3d(_BooConv, torch.nn.Conv3d):
    """`torch.nn.Conv3d`, computed by `boo_conv`."""


#: Spatial axes -> torch's module, and ours.
MODULES: dict[int, tuple[type[torch.nn.Module], type[torch.nn.Module]]] = {
    1: (torch.nn.Conv1d, BooConv1d),
    2: (torch.nn.Conv2d, BooConv2d),
    3: (torch.nn.Conv3d, BooConv3d),
}
