#!/usr/bin/env python3
"""Every kind of operation on this CPU: its fastest known form, with the shipped tiles, against torch.

f32, one run. A row is the geometric mean of the times relative to torch (oneDNN), so lower is better; each
operation is printed with both times. The last row generates, compiles and verifies the operations of every
line of benchmarks/workloads/miopen_commands.txt in their fastest form.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, exit_with, report
from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import Default, shipped_configurations
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.generator import Choices, Plan, emit, plan_generation
from dispatch_profiler.operations import (
    Conv1d,
    Conv2d,
    Conv3d,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Operation,
)
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers.library_calls import with_providers
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry
from dispatch_profiler.workloads.miopen import miopen_operations

TARGET = parse_target("llvm-cpu")
FHWC = "nhwc_fhwc_nhwc"
#: h, c, k, filter size of ResNet-50.
RESNET = ((56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3), (14, 1024, 256, 1))
#: Rows of 768 elements of BERT-base: one sequence of 128 and of 512 tokens, and eight of 512.
BERT = ((128, 768), (512, 768), (4096, 768))
COMMANDS = Path(__file__).parent / "workloads" / "miopen_commands.txt"
COMMAND_SECONDS = 900


@dataclass(frozen=True)
class Work:
    """Operations of one row, and the largest time relative to torch that reaches its goal."""

    name: str
    operations: tuple[Operation, ...]
    goal: float


def resnet(n: int, layout: str = FHWC, **fields: object) -> tuple[Operation, ...]:
    """The five convolutions of ResNet-50."""
    return tuple(
        Conv2d(n, h, h, c, k, size, size, padding=(size // 2,) * 2, layout=layout, **fields)  # type: ignore[arg-type]
        for h, c, k, size in RESNET
    )


def backward(mode: str, problems: Sequence[Operation]) -> tuple[Operation, ...]:
    """The gradients of forward convolutions."""
    return tuple(replace(each, mode=mode) for each in problems)  # type: ignore[type-var]


def works() -> Iterator[Work]:
    """The rows, in the order of the table."""
    strided = Conv2d(1, 56, 56, 128, 128, 3, 3, (2, 2), (1, 1), layout=FHWC)
    pointwise = Conv2d(1, 56, 56, 256, 512, 1, 1, (2, 2), layout=FHWC)
    audio = tuple(Conv1d(**each, layout="nwc_fwc_nwc") for each in Conv1d.problems[:4])
    video = tuple(Conv3d(**each, layout="ndhwc_fdhwc_ndhwc") for each in Conv3d.problems[1:])
    grouped = tuple(
        Conv2d(1, h, h, c, c, 3, 3, padding=(1, 1), groups=g, layout=FHWC)
        for h, c, g in ((28, 128, 4), (56, 128, 32), (28, 256, 32))
    )
    depthwise = tuple(
        Conv2d(1, h, h, c, c, 3, 3, padding=(1, 1), groups=c, layout=FHWC) for h, c in ((56, 128), (28, 256))
    )
    fused = Epilogue.parse("scale_shift+residual+relu")
    yield Work("conv2d forward, NHWC and KYXC, batch 1", resnet(1), 1.2)
    yield Work("conv2d forward, NHWC and KYXC, batch 8", resnet(8), 1.2)
    yield Work("conv2d forward, NCHW, batch 1", resnet(1, "nchw"), 1.5)
    yield Work("conv2d input backward, stride 1", backward("input_backward", resnet(1)), 1.5)
    yield Work("conv2d input backward, stride 2", backward("input_backward", (strided, pointwise)), 1.5)
    yield Work("conv2d weight backward", backward("weight_backward", (*resnet(1), strided)), 2.0)
    yield Work("conv1d forward", audio, 1.5)
    yield Work(
        "conv1d backward", (*backward("input_backward", audio), *backward("weight_backward", audio)), 2.0
    )
    yield Work("conv3d forward", video, 1.5)
    yield Work(
        "conv3d backward", (*backward("input_backward", video), *backward("weight_backward", video)), 2.0
    )
    yield Work("grouped conv2d forward, g = 4 and 32", grouped, 1.5)
    yield Work("depthwise conv2d forward", depthwise, 1.5)
    for name, kind in (
        ("layer norm forward", LayerNorm),
        ("layer norm input backward", LayerNormInputBackward),
        ("layer norm weight backward", LayerNormWeightBackward),
    ):
        yield Work(name, tuple(kind(*shape) for shape in BERT), 1.2)
    yield Work("conv2d, batch norm, residual and relu as one dispatch", resnet(1, epilogue=fused), 0.9)


# -- speed -----------------------------------------------------------------------------------------


def fastest_plan(operations: Sequence[Operation], *, only_fastest: bool = False) -> Plan:
    """The fastest known form of each operation and the shipped tiles; the default where there is neither.

    `only_fastest`: a single dispatch for each operation.
    """
    entries = () if only_fastest else shipped_configurations(TARGET.shipped_list)
    workload = Workload(tuple(map(WorkloadEntry, operations)))
    plan = plan_generation(workload, TARGET, Choices(entries, adds_fastest=True))
    groups = []
    for operation, dispatches in plan.groups:
        tuned = tuple(each for each in dispatches if each.configuration != Default())
        groups.append((operation, (tuned or dispatches)[:1] if only_fastest else tuned or dispatches))
    return replace(plan, groups=tuple(groups))


def compiled(folder: Path, plan: Plan) -> Tree:
    """A compiled tree of `plan`."""
    tree = Tree(folder)
    list(emit(plan, tree))
    list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(workers=2)))
    return tree


def records_of(tree: Tree, libraries: Sequence[str], options: EvaluatorOptions) -> Iterator[Record]:
    """Records of every dispatch, and of every library that computes its operation."""
    pairs = with_providers(load_manifest(tree).dispatches(), ("iree", *libraries))
    with Evaluator(options) as evaluator:
        yield from evaluator.records(TreeCandidates(tree).candidates(pairs))


def ratios(operations: Sequence[Operation], seconds: float) -> Mapping[Operation, float]:
    """Time of each operation's best dispatch relative to torch; infinite if none is correct."""
    best: dict[tuple[Operation, bool], Record] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = compiled(Path(folder), fastest_plan(operations))
        options = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(seconds=seconds)))
        for record in records_of(tree, ["torch"], options):
            key = record.dispatch.operation, record.provider == "torch"
            if record.is_failure or record.measurement is None:
                print(f"    {record.dispatch.name}: {record.verdict.value}, {record.reason}", flush=True)
            elif key not in best or milliseconds(record) < milliseconds(best[key]):
                best[key] = record
    found = {}
    for operation in operations:
        ours, theirs = best.get((operation, False)), best.get((operation, True))
        found[operation] = milliseconds(ours) / milliseconds(theirs) if theirs else math.inf
        name = ours.dispatch.configuration.name if ours else "none"
        print(
            f"{operation.name}: {milliseconds(ours):.3f} ms ({name}), torch {milliseconds(theirs):.3f} ms, "
            f"{found[operation]:.2f}",
            flush=True,
        )
    return found


def milliseconds(record: Record | None) -> float:
    """The median; infinite if there is no record."""
    return math.inf if record is None or record.measurement is None else record.measurement.median_ms


def speed_row(work: Work, seconds: float) -> Row:
    """The geometric mean of a row's times relative to torch."""
    found = ratios(work.operations, seconds).values()
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    name = f"{work.name}: {len(found)} operations relative to torch, at worst {max(found):.2f}"
    return Row(name, mean, "x", f"<= {work.goal:g}", mean <= work.goal)


# -- the operations of a real workload -------------------------------------------------------------


def command_rows(commands: Sequence[str]) -> Iterator[Row]:
    """Generate, compile and verify the operations of all lines in their fastest form."""
    operations = tuple(dict.fromkeys(each for line in commands for each in miopen_operations(line)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = compiled(Path(folder), fastest_plan(operations, only_fastest=True))
        options = EvaluatorOptions("local-task", profile=False, references=tree.references)
        records = list(records_of(tree, [], options))
    took = time.monotonic() - began
    for record in records:
        if record.is_failure:
            print(f"    {record.dispatch.name}: {record.verdict.value}, {record.reason}", flush=True)
    right = sum(record.verdict.value == "SUCCESS" for record in records)
    share = 100 * right / len(operations)
    yield Row(
        f"{len(operations)} operations of {len(commands)} MIOpen commands, verified",
        share,
        "%",
        "100",
        share == 100,
    )
    yield Row("the time for it", took, "s", f"< {COMMAND_SECONDS}", took < COMMAND_SECONDS)


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    rows = []
    for work in works():
        # Two operations of each row and a fifth of the time.
        chosen = replace(work, operations=work.operations[:2]) if options.quick else work
        rows.append(speed_row(chosen, 0.2 if options.quick else 1.0))
    commands = [line for line in COMMANDS.read_text().splitlines() if line and not line.startswith("#")]
    rows.extend(command_rows(commands[::8] if options.quick else commands))
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
