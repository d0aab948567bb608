"""Convolutions by the names of BOO's first version."""

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.preload import CachePopulator, CachePrepopulator
from dispatch_profiler.boo.driver.registry import command_to_signature
from dispatch_profiler.boo.op_exports.conv import ConvSignature

__all__ = [
    "CachePopulator",
    "CachePrepopulator",
    "ConvSignature",
    "command_to_signature",
    "get_launchable",
]
