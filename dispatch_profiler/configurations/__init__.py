"""How the compiler may implement an operation. `kinds` lists the kinds."""

from dispatch_profiler.configurations._base import (
    KINDS,
    Configuration,
    Evidence,
    GpuLimits,
    KernelObject,
    KernelSource,
    Launch,
    Limits,
    configuration_from_dict,
)
from dispatch_profiler.configurations.cpu.amx import AmxMicrokernel
from dispatch_profiler.configurations.cpu.attention_microkernel import AttentionMicrokernel
from dispatch_profiler.configurations.cpu.cpu_tiles import CpuTiles
from dispatch_profiler.configurations.cpu.decoding_microkernel import DecodingMicrokernel
from dispatch_profiler.configurations.cpu.depthwise_gradient import DepthwiseGradient
from dispatch_profiler.configurations.cpu.dot_microkernel import DotMicrokernel
from dispatch_profiler.configurations.cpu.images_microkernel import ImagesMicrokernel
from dispatch_profiler.configurations.cpu.int4_microkernel import Int4Microkernel
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.cpu.packed_in_calls import PackedInCalls
from dispatch_profiler.configurations.cpu.rows_microkernel import RowsMicrokernel
from dispatch_profiler.configurations.cpu.winograd import WinogradMicrokernel
from dispatch_profiler.configurations.default import Default
from dispatch_profiler.configurations.extern import Extern
from dispatch_profiler.configurations.files import (
    ListedConfiguration,
    load_configurations,
    shipped_configurations,
    shipped_lists,
)
from dispatch_profiler.configurations.flows import (
    FLOWS,
    Flow,
    apply_to_processes,
    check_flags,
    needed_features,
    refused_flag,
)
from dispatch_profiler.configurations.formed import Formed
from dispatch_profiler.configurations.forms import FORMS, Form, Kernel, Reduction, Step, packed_by
from dispatch_profiler.configurations.gpu.gpu_tiles import GpuTiles
from dispatch_profiler.configurations.gpu.intrinsics import INTRINSICS, Intrinsic
from dispatch_profiler.configurations.gpu.mma_tiles import MmaTiles, with_narrow_sums
from dispatch_profiler.configurations.gpu.simt_tiles import SimtTiles
from dispatch_profiler.configurations.kinds import (
    draw_valid,
    rejection_reason,
    report_columns,
    spaces,
)
from dispatch_profiler.configurations.lowering import Groups, Lowering, fold_levels, lowering_config_text
from dispatch_profiler.configurations.space import Axis, Choice, Point, Space
from dispatch_profiler.configurations.splits import split_loops
from dispatch_profiler.configurations.triton.attention import TritonAttention
from dispatch_profiler.configurations.triton.rows import TritonRows
from dispatch_profiler.configurations.triton.tiles import TritonTiles
from dispatch_profiler.configurations.tuned import Tuned

__all__ = [
    "FLOWS",
    "FORMS",
    "INTRINSICS",
    "KINDS",
    "AmxMicrokernel",
    "AttentionMicrokernel",
    "Axis",
    "Choice",
    "Configuration",
    "CpuTiles",
    "DecodingMicrokernel",
    "Default",
    "DepthwiseGradient",
    "DotMicrokernel",
    "Evidence",
    "Extern",
    "Flow",
    "Form",
    "Formed",
    "GpuLimits",
    "GpuTiles",
    "Groups",
    "ImagesMicrokernel",
    "Int4Microkernel",
    "Intrinsic",
    "Kernel",
    "KernelObject",
    "KernelSource",
    "Launch",
    "Limits",
    "ListedConfiguration",
    "Lowering",
    "Microkernel",
    "MmaTiles",
    "PackedInCalls",
    "Point",
    "Reduction",
    "RowsMicrokernel",
    "SimtTiles",
    "Space",
    "Step",
    "TritonAttention",
    "TritonRows",
    "TritonTiles",
    "Tuned",
    "WinogradMicrokernel",
    "apply_to_processes",
    "check_flags",
    "configuration_from_dict",
    "draw_valid",
    "fold_levels",
    "load_configurations",
    "lowering_config_text",
    "needed_features",
    "packed_by",
    "refused_flag",
    "rejection_reason",
    "report_columns",
    "shipped_configurations",
    "shipped_lists",
    "spaces",
    "split_loops",
    "with_narrow_sums",
]
