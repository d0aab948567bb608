"""Tunes a model: captures its operations, searches for faster kernels, and proves the result beside inductor."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_profiler.command import SUCCESS, folder, say, say_table, show
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Library, library_file
from dispatch_profiler.tuner.commands import tune_cli

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

    `inputs` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments. The search takes `seconds`
    (by default 2 to 4 minutes, less on many cores), and all of it some minutes more: the winners are measured again, and
    the model is compiled by inductor and by our backend. The files are those of the command `tune`, in the folder `output`;
    progress and the table are printed as there.

    Raises UsageError if the model has no operation that a kernel of this package computes, and the errors of the model.
    """
    from dispatch_profiler.boo.driver.torch_functions import load_torch

    load_torch()
    arguments = [WORKLOAD_FILE, "--output_dir", str(output)]
    if seconds is not None:
        arguments.append(f"--time={seconds}")
    options = tune_cli.make_parser(tune_cli.PROG).parse(arguments)
    named = NamedModel(getattr(model, "__name__", type(model).__name__), model, inputs)
    with tune_cli.confined_cores(options) as spare:
        return tune_models([named], options, spare, training=training)


def tune_models(
    models: Sequence[NamedModel], options: argparse.Namespace, spare: tuple[int, ...], *, training: bool
) -> TunedModel:
    """Tune the operations of all `models`, and prove each model. Prints the progress, and the table of each."""
    output = folder(options.output_dir)
    workload = _write_workload(models, output / WORKLOAD_FILE, training=training)
    given = argparse.Namespace(**{**vars(options), "workload": str(workload)})
    given.time = options.time or usual_seconds(len(usable_cores()) + len(spare))
    given.packed_weights = options.packed_weights or not training
    given.target = options.target or _target_of(models)
    say(f"Searching for {given.time:.0f} s; --time sets another limit")
    status = tune_cli.tune_workload(given, spare)
    file = library_file(output / tune_cli.FINAL)
    library = output / tune_cli.FINAL if file.exists() and len(Library.load(file)) else None
    proofs = tuple(_proven(each, library, training=training) for each in models)
    return TunedModel(library, proofs, status == SUCCESS)


def usual_seconds(cores: int) -> float:
    """How long a search takes unless the user says otherwise."""
    return next((seconds for most, seconds in _USUAL_SECONDS.items() if cores <= most), _SECONDS_OF_MANY)


def _target_of(models: Sequence[NamedModel]) -> str | None:
    """The target of the models' parameters: that of CUDA on an NVIDIA GPU, else the usual one."""
    devices = {each.device.type for named in models for each in named.model.parameters()}
    return "cuda" if devices == {"cuda"} else None


def _write_workload(models: Sequence[NamedModel], path: Path, *, training: bool) -> Path:
    """Capture the operations of all models, and write them to `path`. Raises UsageError if there are none."""
    from dispatch_profiler.boo.capture.capturing import capture
    from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
    from dispatch_profiler.workloads import write_workload
    from dispatch_profiler.workloads.workload_file import merged

    captured: list[Captured] = []
    for each in models:
        say(f"Capturing the operations of {each.name}")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_workload(workload, path)
    left = sum(of.count for each in captured for of in each.left_to_torch)
    beside = f"; torch computes {counted(left, 'operator')}" if left else ""
    runs = sum(entry.count for entry in workload.entries)
    say(f"{counted(len(workload.entries), 'operation')} with {counted(runs, 'launch')} in {path}{beside}")
    return path


def _proven(named: NamedModel, library: Path | None, *, training: bool) -> ModelProof:
    """Measure a model, and print its table and what follows from it."""
    from dispatch_profiler.boo.model_tuning.proof import prove, usual_ways
    from dispatch_profiler.boo.model_tuning.verdict import conclusions, headline, rows

    path = None if library is None else str(library.absolute())
    ways = usual_ways(path, training=training)
    proof = prove(
        named.name,
        named.model,
        named.inputs,
        ways,
        training=training,
        say=lambda line: say(f"[Proof]: {line}"),
    )
    show(headline(proof))
    say_table(rows(proof))
    for line in conclusions(proof, library, training=training):
        show(line)
    return proof
