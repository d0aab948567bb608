"""Convolution modules that compute with our kernels, and functions that put them into models."""

from __future__ import annotations

from dispatch_profiler.boo.modeling.convolutions import (
    BooConv1d,
    BooConv2d,
    BooConv3d,
    Replacement,
    register,
    replace_conv2d_with_boo_conv,
    replace_convs_with_boo,
    restore_convs,
)

__all__ = [
    "BooConv1d",
    "BooConv2d",
    "BooConv3d",
    "Replacement",
    "replace_conv2d_with_boo_conv",
    "replace_convs_with_boo",
    "restore_convs",
]

register()
