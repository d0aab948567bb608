"""Generate, compile, verify, profile and tune MLIR dispatches with IREE.

The names in `__all__` can be imported from here. Each is loaded on first use, so `import
dispatch_profiler` is fast and requires neither IREE nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported
from dispatch_profiler.version import __version__ as __version__

if TYPE_CHECKING:
    from dispatch_profiler.boo.capture import (
        Captured as Captured,
        LeftToTorch as LeftToTorch,
        capture as capture,
    )
    from dispatch_profiler.boo.kernels.uses import (
        misses as misses,
    )
    from dispatch_profiler.boo.model_export import (
        ExportedModel as ExportedModel,
        export_model as export_model,
    )
    from dispatch_profiler.boo.model_tuning import (
        TunedModel as TunedModel,
        tune as tune,
    )
    from dispatch_profiler.compiler import (
        BuildRequest as BuildRequest,
        Built as Built,
        Cache as Cache,
        CompileOptions as CompileOptions,
        IreeCompiler as IreeCompiler,
        NullCompiler as NullCompiler,
        build_key as build_key,
        build_request as build_request,
        compile_tree as compile_tree,
        compiler_for as compiler_for,
    )
    from dispatch_profiler.configurations import (
        Configuration as Configuration,
        CpuTiles as CpuTiles,
        Default as Default,
        Extern as Extern,
        Flow as Flow,
        Formed as Formed,
        GpuTiles as GpuTiles,
        KernelObject as KernelObject,
        KernelSource as KernelSource,
        Launch as Launch,
        Limits as Limits,
        ListedConfiguration as ListedConfiguration,
        Microkernel as Microkernel,
        MmaTiles as MmaTiles,
        SimtTiles as SimtTiles,
        Space as Space,
        TritonAttention as TritonAttention,
        TritonRows as TritonRows,
        TritonTiles as TritonTiles,
        configuration_from_dict as configuration_from_dict,
        draw_valid as draw_valid,
        load_configurations as load_configurations,
        rejection_reason as rejection_reason,
        shipped_configurations as shipped_configurations,
        spaces as spaces,
    )
    from dispatch_profiler.dispatches import (
        Dispatch as Dispatch,
        Manifest as Manifest,
        Selection as Selection,
        State as State,
        Tree as Tree,
        load_manifest as load_manifest,
        unpacked as unpacked,
        write_bundle as write_bundle,
    )
    from dispatch_profiler.errors import (
        CompilerError as CompilerError,
        DispatchProfilerError as DispatchProfilerError,
        MissingDependency as MissingDependency,
        UsageError as UsageError,
    )
    from dispatch_profiler.generator.emit import (
        emit as emit,
    )
    from dispatch_profiler.generator.plan import (
        Choices as Choices,
        Plan as Plan,
        plan_generation as plan_generation,
    )
    from dispatch_profiler.generator.render import (
        render_module as render_module,
    )
    from dispatch_profiler.library.library import (
        Library as Library,
    )
    from dispatch_profiler.operations import (
        Attention as Attention,
        BatchMatmul as BatchMatmul,
        BiasBackward as BiasBackward,
        Contraction as Contraction,
        Conv1d as Conv1d,
        Conv2d as Conv2d,
        Conv3d as Conv3d,
        ElementType as ElementType,
        ElementTypes as ElementTypes,
        Epilogue as Epilogue,
        LayerNorm as LayerNorm,
        LayerNormInputBackward as LayerNormInputBackward,
        LayerNormWeightBackward as LayerNormWeightBackward,
        Matmul as Matmul,
        Operation as Operation,
        Tensor as Tensor,
        operation_from_dict as operation_from_dict,
    )
    from dispatch_profiler.profiler.compare.pairing import (
        CompareOptions as CompareOptions,
        RunComparison as RunComparison,
        compare_records as compare_records,
    )
    from dispatch_profiler.profiler.evaluation.candidate import (
        Candidate as Candidate,
    )
    from dispatch_profiler.profiler.evaluation.evaluator import (
        Evaluator as Evaluator,
    )
    from dispatch_profiler.profiler.evaluation.candidate import (
        TreeCandidates as TreeCandidates,
    )
    from dispatch_profiler.profiler.evaluation.candidate import (
        EvaluatorOptions as EvaluatorOptions,
    )
    from dispatch_profiler.profiler.measurement.measure import (
        MeasureOptions as MeasureOptions,
        Measurement as Measurement,
        Mode as Mode,
    )
    from dispatch_profiler.profiler.records.record import (
        Provenance as Provenance,
        Record as Record,
        Verdict as Verdict,
    )
    from dispatch_profiler.profiler.records.record_file import read_records as read_records
    from dispatch_profiler.profiler.records.record import StoredRecord as StoredRecord
    from dispatch_profiler.profiler.report.dataframe import read_dataframe as read_dataframe
    from dispatch_profiler.profiler.report.html.page import (
        render_page as render_page,
    )
    from dispatch_profiler.profiler.statistics.stopping import (
        StopRule as StopRule,
    )
    from dispatch_profiler.runtime import (
        Device as Device,
        Program as Program,
        open_device as open_device,
    )
    from dispatch_profiler.targets import (
        CpuTarget as CpuTarget,
        CudaTarget as CudaTarget,
        NullTarget as NullTarget,
        RocmTarget as RocmTarget,
        Target as Target,
        VulkanTarget as VulkanTarget,
        fastest_form as fastest_form,
        parse_target as parse_target,
    )
    from dispatch_profiler.workloads import (
        Sweep as Sweep,
        Workload as Workload,
        WorkloadEntry as WorkloadEntry,
        WorkloadReading as WorkloadReading,
        read_workload as read_workload,
        sweep_workload as sweep_workload,
        write_workload as write_workload,
    )

#: Module -> the names that this package exports from it.
_PROVIDED = {
    "operations": (
        "Attention",
        "BatchMatmul",
        "BiasBackward",
        "Contraction",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ElementType",
        "ElementTypes",
        "Epilogue",
        "LayerNorm",
        "LayerNormInputBackward",
        "LayerNormWeightBackward",
        "Matmul",
        "Operation",
        "Tensor",
        "operation_from_dict",
    ),
    "configurations": (
        "Configuration",
        "CpuTiles",
        "Default",
        "Extern",
        "Flow",
        "Formed",
        "GpuTiles",
        "KernelObject",
        "KernelSource",
        "Launch",
        "Limits",
        "ListedConfiguration",
        "Microkernel",
        "MmaTiles",
        "SimtTiles",
        "Space",
        "TritonAttention",
        "TritonRows",
        "TritonTiles",
        "configuration_from_dict",
        "draw_valid",
        "load_configurations",
        "rejection_reason",
        "shipped_configurations",
        "spaces",
    ),
    "targets": (
        "CpuTarget",
        "CudaTarget",
        "NullTarget",
        "RocmTarget",
        "Target",
        "VulkanTarget",
        "fastest_form",
        "parse_target",
    ),
    "workloads": (
        "Sweep",
        "Workload",
        "WorkloadEntry",
        "WorkloadReading",
        "read_workload",
        "sweep_workload",
        "write_workload",
    ),
    "dispatches": (
        "Dispatch",
        "Manifest",
        "Selection",
        "State",
        "Tree",
        "load_manifest",
        "unpacked",
        "write_bundle",
    ),
    "generator.emit": ("emit",),
    "generator.plan": (
        "Choices",
        "Plan",
        "plan_generation",
    ),
    "generator.render": ("render_module",),
    "compiler": (
        "BuildRequest",
        "Built",
        "Cache",
        "CompileOptions",
        "IreeCompiler",
        "NullCompiler",
        "build_key",
        "build_request",
        "compile_tree",
        "compiler_for",
    ),
    "runtime": (
        "Device",
        "Program",
        "open_device",
    ),
    "profiler.statistics.stopping": ("StopRule",),
    "profiler.measurement.measure": (
        "MeasureOptions",
        "Measurement",
        "Mode",
    ),
    "profiler.records.record_file": (
        "Provenance",
        "Record",
        "StoredRecord",
        "Verdict",
        "read_records",
    ),
    "profiler.evaluation.candidate": ("Candidate", "EvaluatorOptions", "TreeCandidates"),
    "profiler.evaluation.evaluator": ("Evaluator",),
    "profiler.compare.pairing": (
        "CompareOptions",
        "RunComparison",
        "compare_records",
    ),
    "profiler.report.dataframe": ("read_dataframe",),
    "profiler.report.html.page": ("render_page",),
    "library.library": ("Library",),
    "boo.capture": ("Captured", "LeftToTorch", "capture"),
    "boo.kernels.uses": ("misses",),
    "boo.model_export": ("ExportedModel", "export_model"),
    "boo.model_tuning": ("TunedModel", "tune"),
    "errors": (
        "CompilerError",
        "DispatchProfilerError",
        "MissingDependency",
        "UsageError",
    ),
}
__all__, __getattr__, __dir__ = exported(__name__, _PROVIDED)
