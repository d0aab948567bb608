"""`profiler.py`: compiled dispatches -> verdicts and measurements, on the console and in files."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    USAGE,
    Parser,
    add_choice_argument,
    add_tool_arguments,
    add_tree_arguments,
    boolean,
    fail,
    folder,
    on_terminal,
    positive,
    positive_number,
    run,
    say,
    show,
    track,
    user_cache,
)
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import (
    Manifest,
    Selection,
    Tree,
    load_manifest,
    unpacked,
)
from dispatch_profiler.errors import DispatchProfilerError, ToolError, UsageError
from dispatch_profiler.operations import DEFAULT_SEED
from dispatch_profiler.profiler.compare.live import LiveOptions, confirmations, winners
from dispatch_profiler.profiler.evaluation.candidate import (
    Candidate,
    EvaluatorOptions,
    TreeCandidates,
    check_compiled,
)
from dispatch_profiler.profiler.evaluation.devices import Evaluators, parse_devices, unlike
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, Mode
from dispatch_profiler.profiler.providers.library_calls import (
    IREE,
    check_installed,
    choose_reference,
    parse_providers,
    with_providers,
)
from dispatch_profiler.profiler.records.record import Record, StoredRecord, Verdict
from dispatch_profiler.profiler.records.record_file import beside_csv, earlier_records
from dispatch_profiler.profiler.records.resume import Wanted, left_to_do
from dispatch_profiler.profiler.report.csv_columns import add_columns_argument, chosen_columns
from dispatch_profiler.profiler.report.outputs import (
    FORMATS,
    Confirmed,
    RunOutputs,
    and_samples,
    check_output,
)
from dispatch_profiler.profiler.report.progress import Tally
from dispatch_profiler.profiler.report_files import ReportFiles, add_file_arguments
from dispatch_profiler.profiler.statistics.comparison import Outcome
from dispatch_profiler.profiler.statistics.stopping import Ended, StopRule
from dispatch_profiler.runtime import DeviceUri, all_devices, device_uri, find_runtime_tools

PROG = "profiler.py"
#: The options that --help shows.
_COMMON = (
    "--dispatches",
    "--operation-kind",
    "--generated-dir",
    "--output",
    "--columns",
    "--format",
    "--providers",
    "--verification-enabled",
    "--profiling-enabled",
    "--precision",
    "--budget",
    "--resume",
)


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="finished dispatches are kept")


def _main(options: argparse.Namespace) -> int:
    tags = _tags(options.tags)
    _check(options, tags)
    files = ReportFiles.of(options)
    providers = parse_providers(options.providers)
    reference = choose_reference(options.reference, providers)
    check_installed(providers)
    with _source(options) as source:
        chosen = source.manifest.choose(Selection.parse(options.dispatches, options.operation_kind))
        pairs = with_providers(chosen, providers)
        if options.dry_run:
            for _, dispatch in pairs:
                show(dispatch.dispatch.name)
            return SUCCESS
        devices = _devices(options, source.manifest.target.device_uri)
        how = _profile_options(options, devices[0], source)
        tree = TreeCandidates(source.manifest.tree, _program(options))
        with Evaluators(how, devices) as evaluators:
            evaluators.check_device()
            if IREE in providers:
                check_compiled(chosen)
            print_notes(devices, options, providers)
            evaluators.check_libraries([name for name in providers if name != IREE])
            with RunOutputs(options.format, tags, files, options.top, reference) as outputs:
                candidates, earlier = tree.candidates(pairs), list[StoredRecord]()
                if options.output:
                    candidates, earlier = _to_files(options, candidates, evaluators, outputs)
                confirmed: list[Confirmed] = []
                try:
                    _run(evaluators, candidates, outputs)
                    if options.confirm:
                        _confirm(source.manifest, outputs.stored_records(earlier), how, confirmed)
                except (KeyboardInterrupt, BrokenPipeError, DispatchProfilerError):
                    outputs.keep(user_cache() / "interrupted.csv", earlier, confirmed)
                    raise
            outputs.finish(earlier, confirmed)
            status = _summarize(outputs.records, how, options)
            return _report_failures(evaluators.failures, tree.damaged) or status


def _program(options: argparse.Namespace) -> tuple[str, ...]:
    """The first words of the command lines that reproduce records: those of the command that runs."""
    if options.prog != PROG:
        return tuple(options.prog.split())
    # A machine that profiles a bundle need not have a checkout.
    return ("python", "-m", "dispatch_profiler", "profile") if options.bundle else ("python", PROG)


@dataclass(frozen=True)
class _Source:
    """The tree to profile, and the default seed of its inputs."""

    manifest: Manifest
    seed: int = DEFAULT_SEED


@contextmanager
def _source(options: argparse.Namespace) -> Iterator[_Source]:
    """A generated tree, or a bundle's tree while it is unpacked."""
    if not options.bundle:
        yield _Source(load_manifest(Tree(folder(options.generated_dir))))
        return
    with unpacked(folder(options.bundle)) as (manifest, info):
        if info.host != manifest.host:
            say(
                f"this bundle was compiled for another machine's CPU, {info.host}; dispatches that this CPU"
                " cannot run are reported as Crashed (generator.py --target=llvm-cpu:NAME names a CPU)"
            )
        yield _Source(manifest, info.seed)


def _devices(options: argparse.Namespace, default: str) -> tuple[str, ...]:
    """The devices to run on. Raises UsageError and TargetError."""
    if options.devices is None:
        return (device_uri(options.device, default) if options.device else default,)
    if options.device is not None:
        raise UsageError("--device and --devices exclude each other", hint="remove one of them")
    return all_devices(default) if options.devices == "all" else parse_devices(options.devices, default)


def print_notes(devices: Sequence[str], options: argparse.Namespace, providers: Sequence[str]) -> None:
    """Print what affects the measurements of this run."""
    if note := unlike(devices):
        say(note)
    if not DeviceUri.parse(devices[0]).is_gpu:
        return
    if options.build_dir is not None:
        say(
            "--build-dir: each sample starts a new process and wakes up the GPU, so times are too long (up to"
            " five times as long in our measurements)\nhint: remove --build-dir to measure"
        )
    if options.mode == Mode.COLD.value and "torch" in providers:
        say(
            "--mode=cold: torch runs eagerly, so its times include kernel launches; with warm "
            "caches it runs in CUDA graphs"
        )


def _check(options: argparse.Namespace, tags: dict[str, str]) -> None:
    """Raise UsageError for options that have no effect or contradict each other."""
    if (options.append or options.resume) and not options.output:
        raise UsageError("--append and --resume require an output file", hint="add --output=FILE")
    if options.columns and not options.output:
        raise UsageError("--columns requires a CSV", hint="add --output=FILE.csv")
    chosen_columns(options.columns)
    if options.output and not options.dry_run:
        check_output(folder(options.output), extends=options.append or options.resume)
    if tags and not options.output and options.format != "json":
        raise UsageError("--tags are stored in records", hint="add --output=FILE or --format=json")
    if options.bundle and options.generated_dir != ".":
        raise UsageError("--bundle contains a tree", hint="remove --generated-dir")
    if options.confirm and not options.profiling_enabled:
        raise UsageError("--confirm requires measurements", hint="remove --profiling-enabled=false")
    if options.confirm and (options.mode != Mode.WARM.value or options.build_dir is not None):
        raise UsageError(
            "--confirm measures with warm caches and the installed runtime",
            hint="remove --confirm, or --mode and --build-dir",
        )
    if options.top and options.format != "table":
        raise UsageError("--top applies to the table only", hint="add --format=table")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(
        _COMMON,
        (
            f"{prog} --dispatches='matmul_*,*_default' --output=data.csv",
            f"{prog} --operation-kind=conv2d --format=table",
        ),
    )
    parser = Parser(prog, "Verify compiled dispatches against numpy and measure them.", page)
    add_tree_arguments(parser)
    add_tool_arguments(parser, step="each step of a dispatch", memory="memory that a dispatch may allocate")
    _add_subjects(parser)
    _add_measuring(parser)
    _add_output(parser)
    return parser


def _add_subjects(parser: Parser) -> None:
    """Options that choose the dispatches to profile, and the devices."""
    parser.add_argument(
        "--bundle", metavar="FILE.zip",
        help="profile a bundle that compile.py --bundle wrote; requires no compiler",
    )  # fmt: skip
    parser.add_argument("--device", help="device URI, or its number (default: the target's device)")
    parser.add_argument(
        "--devices", metavar="DEVICE,...|all",
        help="several devices, each with its own default and peaks; all: all devices of the target's driver",
    )  # fmt: skip
    parser.add_argument(
        "--providers", default=IREE, metavar="NAME,...",
        help="kernels to profile: iree, and the libraries numpy and torch (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--reference", metavar="NAME",
        help="baseline of speedups: a library, or default for the compiler's own choice"
        " (default: the first library in --providers, if any)",
    )  # fmt: skip


def _add_measuring(parser: Parser) -> None:
    """Options for how each dispatch is verified and measured."""
    parser.add_argument(
        "--verification-enabled", type=boolean, default=True, metavar="true|false",
        help="compare results with numpy (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--profiling-enabled", "--benchmark", type=boolean, default=True, metavar="true|false",
        help="measure dispatches (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--benchmark-repetitions", type=positive, metavar="N",
        help="take N samples of each dispatch (default: as many as --precision needs)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", type=positive_number, default=1.0, metavar="PERCENT",
        help="measure until the 95 %% interval of the median is within ± this (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=positive_number, default=1.0, metavar="SECONDS",
        help="time limit for measuring each dispatch (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=positive, metavar="N",
        help="minimum number of executions per sample (default: enough to fill 5 ms)",
    )  # fmt: skip
    add_choice_argument(
        parser, "--mode", Mode.WARM, "keep operands in the caches, or use uncached ones for each execution"
    )
    parser.add_argument(
        "--confirm", action="store_true",
        help="after the run, compare each operation's best configuration with the default by paired sampling",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N",
        help=f"seed of the inputs (default: {DEFAULT_SEED}, or the bundle's)",
    )  # fmt: skip


def _add_output(parser: Parser) -> None:
    """Options for the output."""
    parser.add_argument(
        "--format", choices=FORMATS, default="blocks",
        help="a block or a line of JSON for each dispatch as it finishes, or one table at the end"
        " (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=positive, metavar="N", help="limit the table to the N fastest of each operation"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE.csv", help="also write CSV, row by row, and all samples to FILE.jsonl"
    )
    add_columns_argument(parser)
    add_file_arguments(parser)
    parser.add_argument(
        "--resume", action="store_true",
        help="skip dispatches that FILE.jsonl already has for the same device, compiler and seed",
    )  # fmt: skip
    parser.add_argument("--append", action="store_true", help="extend the files instead of replacing them")
    parser.add_argument("--tags", default="", metavar="KEY:VALUE,...", help="first columns of the CSV")
    parser.add_argument("--dry-run", action="store_true", help="list the dispatches and exit")


def _profile_options(options: argparse.Namespace, device: str, source: _Source) -> EvaluatorOptions:
    if options.build_dir is not None:
        find_runtime_tools(options.build_dir)
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed: expected a whole number of at least 0, but got {options.seed}")
    return EvaluatorOptions(
        device=device,
        verify=options.verification_enabled,
        profile=options.profiling_enabled,
        measure=MeasureOptions(
            StopRule(options.precision / 100.0, options.budget, options.benchmark_repetitions),
            options.batch_size,
            Mode(options.mode),
        ),
        seed=source.seed if options.seed is None else options.seed,
        seconds=options.timeout,
        memory_bytes=options.memory_limit,
        build_dir=options.build_dir,
        peaks=user_cache() / "machines",
        references=source.manifest.tree.references,
    )


def _tags(text: str) -> dict[str, str]:
    """`card:H200,run:3` -> {"card": "H200", "run": "3"}; values may contain colons."""
    tags: dict[str, str] = {}
    for part in text.split(",") if text else []:
        key, colon, value = part.partition(":")
        if not key.strip() or not colon:
            raise UsageError(f"--tags: expected key:value, but got {part!r}")
        if key.strip() in tags:
            raise UsageError(f"--tags: {key.strip()!r} is given twice")
        tags[key.strip()] = value.strip()
    return tags


# -- running ---------------------------------------------------------------------------------------


def _to_files(
    options: argparse.Namespace,
    candidates: list[Candidate],
    evaluators: Evaluators,
    outputs: RunOutputs,
) -> tuple[list[Candidate], list[StoredRecord]]:
    """Open the files of --output; returns the remaining candidates and the finished records."""
    output = folder(options.output)
    if not (options.append or options.resume):
        outputs.to_csv(output, names=options.columns)
        return candidates, []
    known = earlier_records("--resume" if options.resume else "--append", output)
    left, done = candidates, list[StoredRecord]()
    if options.resume:
        wanted = Wanted(options.verification_enabled, options.profiling_enabled, options.mode)
        left, done = left_to_do(
            candidates,
            lambda each: ((each.dispatch.name, origin) for origin in evaluators.provenances(each)),
            known,
            wanted,
        )
        done_count, count = len(candidates) - len(left), len(candidates)
        say(f"already in {beside_csv(output)}: {done_count} of {counted(count, 'dispatch')}")
    outputs.to_csv(output, known, options.columns)
    return left, done


def _run(evaluators: Evaluators, candidates: list[Candidate], outputs: RunOutputs) -> None:
    lines = not (on_terminal() or outputs.shows_blocks)
    evaluators.load_ahead(candidates, lambda sentence: say(f"[Profiling]: {sentence}"))
    tally = Tally(candidates)
    records = evaluators.records(tally.begun())
    for record in track(
        records, len(candidates), "Profiling", prints=outputs.streams, note=tally.note, left=tally.left,
        size=lambda _: tally.step,
    ):  # fmt: skip
        outputs.add(record)
        tally.add(record)
        if lines:
            say(tally.line(record))


def _confirm(
    manifest: Manifest, records: Sequence[StoredRecord], how: EvaluatorOptions, confirmed: list[Confirmed]
) -> None:
    """Append each best record with the result of paired sampling to `confirmed`."""
    options = LiveOptions(how.device, seed=how.seed, limit_seconds=how.seconds)
    names = (d.dispatch.name for _, d in manifest.dispatches())
    count = len(winners(records, names))
    for record, found in track(confirmations(manifest, records, options), count, "Confirming"):
        confirmed.append((record, found))
        say(f"[Confirming]: {record.dispatch}: {found.text}")
    sure = sum(found.outcome == Outcome.FASTER.value for _, found in confirmed)
    say(f"[Confirming]: faster than the default: {sure} of {counted(count, 'best configuration')}")


def _summarize(records: list[Record], how: EvaluatorOptions, options: argparse.Namespace) -> int:
    verdicts = Counter(record.verdict for record in records)
    counts = ", ".join(f"{verdicts[v]} {v.value}" for v in Verdict if verdicts[v])
    say(f"\n{counted(len(records), 'dispatch')}: {counts} (inputs from seed {how.seed})")
    if options.output:
        say(f"Writing performance report to {options.output}{and_samples(folder(options.output))}")
    measured = [record.measurement for record in records if record.measurement]
    taken = counted(len(measured), "measurement")
    late = [each for each in measured if each.ended_by == Ended.BUDGET.value]
    wide = sum(100 * each.half_width > options.precision for each in late)
    if wide:
        say(f"{wide} of {taken} did not reach ±{options.precision:g} % within --budget")
    doubtful = sum(bool(m.warnings) for m in measured)
    if doubtful:
        say(f"{doubtful} of {taken} with a warning")
    return FAILED if any(record.is_failure for record in records) else SUCCESS


def _report_failures(devices: Mapping[str, str], damaged: Sequence[Path]) -> int:
    """Print the failed devices and the damaged vmfbs; returns the exit status."""
    for device, reason in devices.items():
        fail(ToolError(f"the device {device} failed: {reason}", hint="other devices took over its work"))
    for path in damaged:
        fail(UsageError(f"{path} is damaged or missing", hint="run compile.py again"))
    return USAGE if damaged else FAILED if devices else SUCCESS


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.profiler.cli"))
