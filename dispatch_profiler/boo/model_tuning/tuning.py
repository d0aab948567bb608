"""Tunes a model: captures its operations, searches for faster kernels, and proves the result beside inductor."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.capture.arguments import reported_as
from dispatch_profiler.boo.driver.torch_functions import cpp_compiler, load_torch
from dispatch_profiler.command import SUCCESS, say, show
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import width_of
from dispatch_profiler.console.terminal import aligned
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Library, library_file
from dispatch_profiler.targets import DEFAULT_TARGET, Target
from dispatch_profiler.tuner.commands import tune_cli
from dispatch_profiler.tuner.commands.arguments import parse_architecture
from dispatch_profiler.tuner.commands.tune_cli import TuneOptions
from dispatch_profiler.workloads import Workload, merged, write_workload

if TYPE_CHECKING:
    from dispatch_profiler.boo.capture.capturing import Captured
    from dispatch_profiler.boo.model_tuning.proof import ModelProof

#: The captured operations, in the output folder.
WORKLOAD_FILE = "workload.yaml"
#: Seconds of a search on at most so many cores, and on more.
_USUAL_SECONDS = {2: 240.0, 8: 180.0}
_SECONDS_OF_MANY = 120.0


@dataclass(frozen=True)
class NamedModel:
    """A model and its inputs: a tensor, a sequence of positional arguments, or a mapping of keyword arguments."""

    name: str
    model: Any
    inputs: Any


@dataclass(frozen=True)
class TunedModel:
    """The folder of the library, None if nothing is faster than what launches use without it; and a proof for each model.

    `is_complete` says whether every problem was searched without a failure.
    """

    library: Path | None
    proofs: tuple[ModelProof, ...]
    is_complete: bool = True


def tune(
    model: Any,
    inputs: Any,
    *,
    seconds: float | None = None,
    output: str | Path = "tuned",
    training: bool = False,
) -> TunedModel:
    """Tune the kernels that `torch.compile(model, backend="iree_boo_inductor")` would use, and prove what that brings.

    `inputs` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments. The model is in evaluation
    mode meanwhile, or in training mode with `training`. The search takes `seconds` (by default 4 minutes on 2 cores, 2 on
    more than 8), and all of it some minutes more: the winners are measured again, and the model is compiled by inductor and
    by our backend. The files are those of the command `tune`, in the folder `output`; progress and the table are printed as
    there.

    Raises UsageError if the model has no operation that a kernel of this package computes, or nothing to train; ValueError
    for other seconds than positive ones; and the errors of the model.
    """
    load_torch()
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise ValueError(f"expected positive seconds, but got {seconds}")
    given = tune_cli.make_parser(tune_cli.PROG).parse([WORKLOAD_FILE, "-o", str(output)])
    given.time = seconds
    named = NamedModel(getattr(model, "__name__", type(model).__name__), model, inputs)
    was_training = model.training
    try:
        model.train(training)
        with tune_cli.confined_cores(given) as spare:
            options = tune_cli.tune_options(given, spare, target_of([named]))
            return tune_models([named], options, training=training)
    finally:
        model.train(was_training)


def tune_models(models: Sequence[NamedModel], options: TuneOptions, *, training: bool) -> TunedModel:
    """Tune the operations of all `models`, and prove each model. Prints the progress, and the table of each.

    Their workload is written to the output folder, in place of the workload of `options`. Without a time in `options`, the
    search takes `usual_seconds`. Weights are constant except in training. Raises MissingDependency, before anything is done,
    if inductor has no C++ compiler.
    """
    if options.target.family == DEFAULT_TARGET:
        cpp_compiler("inductor, with which the model is compared,")
    output = options.output
    workload = _captured(models, training=training)
    tune_cli.check_outputs(output, options.target, set(workload.operations))
    output.mkdir(parents=True, exist_ok=True)
    write_workload(workload, output / WORKLOAD_FILE)
    status = tune_cli.tune_workload(_of_model(options, training=training))
    library = _library_in(output / tune_cli.FINAL)
    try:
        proofs = tuple(_proven(each, library, training=training) for each in models)
    except KeyboardInterrupt:
        kept = f"the library {library} is complete" if library else "tuning is done, and no kernel is faster"
        raise KeyboardInterrupt(
            f"{kept}; only the proof is missing, and the same command measures it"
        ) from None
    from dispatch_profiler.boo.model_tuning.proof import AFTER

    is_usable = not any(each.sides[AFTER].failure for each in proofs if AFTER in each.sides)
    return TunedModel(library, proofs, status == SUCCESS and is_usable)


def _of_model(options: TuneOptions, *, training: bool) -> TuneOptions:
    """`options` with the workload, the time and the weights of a model; says how long the search takes."""
    search = options.steps.search
    seconds = search.seconds or usual_seconds(len(usable_cores()) + len(search.spare_cores))
    say(f"Searching for {seconds:.4g} s; --time sets another limit")
    steps = replace(options.steps, search=replace(search, seconds=seconds))
    changes = options.changes if training else {**options.changes, "packed_weights": True}
    return replace(options, workload=options.output / WORKLOAD_FILE, steps=steps, changes=changes)


def _library_in(path: Path) -> Path | None:
    """The folder of a library with entries; None without any."""
    return path if library_file(path).exists() and len(Library.load(path)) else None


def usual_seconds(cores: int) -> float:
    """How long a search takes unless the user says otherwise."""
    return next((seconds for most, seconds in _USUAL_SECONDS.items() if cores <= most), _SECONDS_OF_MANY)


def target_of(models: Sequence[NamedModel], wanted: str | None = None) -> Target:
    """The target for the device of the models' tensors. Raises UsageError if `wanted` is the name of another one."""
    devices = {each.device.type for named in models for each in _tensors_of(named)}
    family = "cuda" if devices == {"cuda"} else DEFAULT_TARGET
    named = wanted or family
    target = parse_architecture(named)
    if target.family != family:
        raise UsageError(
            f"--target={named}: the model is on {', '.join(sorted(devices)) or 'the CPU'}, where its kernels cannot run",
            hint="leave --target out, or capture the model and tune the workload: dispatch-profiler capture --help",
        )
    return target


def _tensors_of(named: NamedModel) -> Iterator[Any]:
    import torch

    yield from named.model.parameters()
    yield from named.model.buffers()
    leaves = torch.utils._pytree.tree_leaves(named.inputs)
    yield from (each for each in leaves if isinstance(each, torch.Tensor))


def _captured(models: Sequence[NamedModel], *, training: bool) -> Workload:
    """The operations of all models. Raises UsageError if there are none, and for errors of a model."""
    from dispatch_profiler.boo.capture.capturing import capture
    from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

    captured: list[Captured] = []
    for each in models:
        if training and not any(parameter.requires_grad for parameter in each.model.parameters()):
            raise UsageError(f"{each.name} has no parameters to train", hint="leave --training out")
        say(f"Capturing the operations of {each.name}")
        with reported_as(each.name, each.model, each.inputs):
            captured.append(
                capture(
                    each.model,
                    each.inputs,
                    training=training,
                    fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
                    origin=each.name,
                )
            )
    workload = merged([entry for each in captured for entry in each.workload.entries])
    if not workload.entries:
        raise UsageError(
            f"{models[0].name} has no operation that a kernel of this package computes",
            hint="dispatch-profiler explain lists its operators, and why they are left to torch",
        )
    left = sum(of.count for each in captured for of in each.left_to_torch)
    beside = f"; torch computes {counted(left, 'operator')}" if left else ""
    runs = sum(entry.count for entry in workload.entries)
    say(f"Captured {counted(len(workload.entries), 'operation')} with {counted(runs, 'launch')}{beside}")
    return workload


def _proven(named: NamedModel, library: Path | None, *, training: bool) -> ModelProof:
    """Measure a model, and print its table and what follows from it."""
    from dispatch_profiler.boo.model_tuning.proof import prove, usual_ways
    from dispatch_profiler.boo.model_tuning.verdict import conclusions, headline, rows

    path = None if library is None else str(library.absolute())
    ways = usual_ways(path, training=training)
    with reported_as(named.name, named.model, named.inputs):
        proof = prove(
            named.name,
            named.model,
            named.inputs,
            ways,
            training=training,
            say=lambda line: say(f"[Proof]: {line}"),
        )
    show(headline(proof))
    show(aligned(rows(proof), width_of(sys.stdout)))
    for line in conclusions(proof, library, training=training):
        show(line)
    return proof
