"""`export_model`: a PyTorch model -> a folder with a package of AOTInductor that contains our kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionSchema
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.library.c_export.folder import check_folder, write_folder

if TYPE_CHECKING:
    from dispatch_profiler.boo.model_export.fused_model import FusedModel
    from dispatch_profiler.boo.model_export.traced_model import TracedModel

#: The package, in its folder.
PACKAGE = "model.pt2"


@dataclass(frozen=True)
class ExportedModel:
    """A model that was exported to the file `package`.

    `kernels` has the operation and the configuration of each region that one of our kernels computes, in the order of the
    model; `left_to_torch` the operators that could begin a region, and why AOTInductor computes them. `relative_time` is
    the time of a call relative to a package of AOTInductor alone; None if it was not measured.
    """

    package: Path
    kernels: tuple[tuple[str, str], ...]
    left_to_torch: tuple[tuple[str, str], ...]
    relative_time: float | None = None


def export_model(
    model: Any,
    inputs: Any,
    folder: Path | str,
    *,
    measure: bool = True,
    fusion_schema: FusionSchema = DEFAULT_SUPPORTED_BOO_FUSIONS,
    inductor_options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> ExportedModel:
    """Write a package of AOTInductor for `model` to `folder`, with an example in C++ that runs it.

    `inputs` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments; the package is for their
    shapes. The model is on the CPU, in evaluation mode, and changes nothing. Its weights become constants. With `measure`,
    kernels compute only the regions that they compute faster, as with `torch.compile`, and the package is compared with
    a package of AOTInductor alone, which is written if it is faster. The results are compared with eager torch in
    float64. `inductor_options` are inductor's options; `say` is called with a line for each step.

    Raises MissingDependency without torch or with a version that is too old, UsageError for a model that cannot be
    exported, without a C++ compiler, and if no kernel computes a part of the model; and ToolError if AOTInductor fails or
    the results are wrong.
    """
    from dispatch_profiler.boo.driver.torch_functions import load_torch

    load_torch()
    from dispatch_profiler.boo.model_export.native_library import check_tools
    from dispatch_profiler.boo.model_export.package_files import package_files
    from dispatch_profiler.boo.model_export.traced_model import traced

    path = Path(folder)
    check_folder(path)
    compiler = check_tools()
    say("tracing the model")
    of = traced(model, inputs)
    with tempfile.TemporaryDirectory() as temporary:
        export = _Export(model, of, Path(temporary), inductor_options or {}, say)
        fused = export.fused(fusion_schema, compiler, measure=measure)
        package, relative_time = export.package(fused, measure=measure)
        kernels = tuple((each.kernel.name, each.kernel.configuration) for each in fused.operators)
        exported = ExportedModel(
            path / PACKAGE,
            kernels if relative_time is None or relative_time < 1 else (),
            tuple((str(each.root), each.reason) for each in fused.left_to_torch),
            relative_time,
        )
        texts = package_files(of.tensors, exported.kernels, exported.left_to_torch)
        write_folder(path, {PACKAGE: package.read_bytes(), **texts})
    return exported


@dataclass(frozen=True)
class _Export:
    """The steps of an export. `temporary` is a folder."""

    model: Any
    traced: TracedModel
    temporary: Path
    options: Mapping[str, Any]
    say: Callable[[str], None]

    def fused(self, schema: FusionSchema, compiler: str, *, measure: bool) -> FusedModel:
        """The model with operators for its regions. Raises UsageError if no region has a kernel."""
        from dispatch_profiler.boo.backends.graph_compiler import Backend
        from dispatch_profiler.boo.environment import QUICK
        from dispatch_profiler.boo.fusion.schema import GLUE
        from dispatch_profiler.boo.fusion.traced_graphs import GraphKind
        from dispatch_profiler.boo.model_export.fused_model import fused

        self.say(f"compiling kernels{' and measuring them' if measure else ''}")
        backend, autotune = Backend("inductor", schema), QUICK if measure else False
        rules = backend.schema_for(GraphKind.INFERENCE, self.traced.module.graph, autotune)
        choice = backend.region_choice(GraphKind.INFERENCE, autotune)
        made = fused(self.traced, rules.without(GLUE), choice, self.temporary, compiler)
        if made.operators:
            return made
        first = next(iter(made.left_to_torch), None)
        reason = f"{first.node}: {first.reason}" if first else "it has no operator that the schema fuses"
        raise UsageError(
            f"no kernel of this package computes a part of the model: {reason}",
            hint="torch._inductor.aoti_compile_and_package exports it without kernels",
        )

    def package(self, fused: FusedModel, *, measure: bool) -> tuple[Path, float | None]:
        """The faster package, and the time of a call with kernels relative to a call without, if measured."""
        from dispatch_profiler.boo.model_export.checking import difference
        from dispatch_profiler.boo.model_export.packaging import (
            loaded,
            relative_time,
            write_package,
            write_plain_package,
        )

        ours, plain = self.temporary / PACKAGE, self.temporary / f"plain_{PACKAGE}"
        self.say("compiling the package by AOTInductor")
        write_package(fused, self.traced, ours, self.options)
        function = loaded(ours)
        self.say("comparing the results with eager torch")
        if reason := difference(function, self.model, self.traced.inputs):
            raise ToolError(f"the package computes something else than the model: {reason}")
        if not measure:
            return ours, None
        self.say("compiling and measuring a package without kernels, to compare with")
        write_plain_package(self.model, self.traced, plain, self.options)
        time = relative_time(function, loaded(plain), self.traced.inputs)
        return (ours if time < 1 else plain), time
