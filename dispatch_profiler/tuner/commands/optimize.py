"""Searched problems -> a library: merge the winners, benchmark them, and keep faster ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.library import KeepRule, Library, library_file
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.report.page import REPORT_FILE, TuningOutcome, render_tuning
from dispatch_profiler.tuner.results.benchmark_rounds import BenchmarkRounds
from dispatch_profiler.tuner.results.finalists import Benchmark, untuned_best
from dispatch_profiler.tuner.results.results import write_results
from dispatch_profiler.tuner.results.runners_up import Ranked, contenders, ranked
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement, Uplift
from dispatch_profiler.tuner.tunings.problems import TuningProblem
from dispatch_profiler.tuner.tunings.shares import TIME, read_summary
from dispatch_profiler.tuner.tunings.tuning_file import Tuning
from dispatch_profiler.tuner.tunings.tuning_search import Searched

#: The folder of the merged winners, among the results.
WINNERS = "winners"


@dataclass(frozen=True)
class Outputs:
    """Folders that are written: the final library, and the results."""

    library: Path
    results: Path


@dataclass(frozen=True)
class Weights:
    """The percentage of each problem in its workload, by the problem's name; `unit` is time or FLOP."""

    shares: Mapping[str, float] = field(default_factory=dict)
    unit: str = TIME


def weights_of(tunings: Sequence[Tuning], summary: Path) -> Weights:
    """The shares of the problems of `tunings` in a `summary.csv`. Raises UsageError if it lists other problems."""
    rows = {row.problem: row for row in read_summary(summary)}
    shares = {}
    for tuning in tunings:
        row = rows.get(tuning.name)
        if row is None or row.operation != tuning.operation.name:
            raise UsageError(
                f"--log_summary: {summary} does not have {tuning.name} ({tuning.operation.name})",
                hint="pass the summary.csv that gen_configs wrote beside the tuning files",
            )
        if row.percent is not None:
            shares[tuning.name] = row.percent
    return Weights(shares, next((row.weighed_by for row in rows.values()), TIME))


@dataclass(frozen=True)
class Finished:
    """The judgement of each problem, in order; the final library, and the uplift."""

    judged: tuple[Judged, ...]
    library: Library
    uplift: Uplift


def check_output(outputs: Outputs, target: Target, operations: Collection[Operation]) -> None:
    """Raise UsageError if the final library exists and is for another target, or has entries of other operations."""
    for path in (outputs.library, outputs.results):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file, but a folder is expected", hint="name another one")
    if not library_file(outputs.library).exists():
        return
    library = Library.load(outputs.library)
    others = [name for name, _ in library.software if name != target.name]
    if others:
        raise UsageError(
            f"--library_dir: {outputs.library} is a library for {', '.join(others)}, not for {target.name}",
            hint="name another folder",
        )
    foreign = [entry.operation.name for entry in library.entries if entry.operation not in operations]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"--library_dir: {outputs.library} has entries of other tunings: {', '.join(foreign[:3])}{more}",
            hint="name another folder, and merge the libraries afterwards with dispatch-profiler merge",
        )


def finish(
    searched: Sequence[Searched],
    benchmark: Benchmark,
    outputs: Outputs,
    rule: KeepRule,
    weights: Weights,
    say: Callable[[str], None],
) -> Finished:
    """The steps after the search: writes the results and the final library.

    `say` is called with lines of progress. Raises TargetError if the device does not open.
    """
    with tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        fields = _ranked(searched, benchmark, Path(folder) / "runners_up", say)
        rounds = BenchmarkRounds(fields, _with_progress(benchmark, "Benchmark", say), rule, say)
        winners = rounds.first_winners()
        file = winners.save(outputs.results / WINNERS)
        say(f"[Merge]: {counted(len(winners), 'winner')} of {counted(len(searched), 'problem')} in {file}")
        rounds.run(outputs.results / WINNERS, Path(folder))
    final = Library(rounds.kept[name] for name in fields if name in rounds.kept)
    final.save(outputs.library)
    judged = [
        rounds.judged(each.tuning.name) or _without_finalist(each, benchmark.target) for each in searched
    ]
    every = [_with_share(each, weights) for each in judged]
    packed = sum(entry.packs_weight for entry in final.entries)
    uplift = write_results(outputs.results, every, _settings(benchmark, rule, packed))
    if packed:
        say(f"[Postprocess]: {counted(packed, 'entry')} of {len(final)} with weights packed at load time")
    tuned = TuningOutcome(tuple(searched), tuple(every), uplift, weights.unit, rule.threshold)
    write_atomic(outputs.results / REPORT_FILE, render_tuning(tuned, f"Tuning for {benchmark.target.name}"))
    return Finished(tuple(every), final, uplift)


def _with_progress(benchmark: Benchmark, step: str, say: Callable[[str], None]) -> Benchmark:
    return replace(benchmark, say=lambda line: say(f"[{step}]: {line}"))


def _ranked(
    searched: Sequence[Searched], benchmark: Benchmark, folder: Path, say: Callable[[str], None]
) -> dict[str, Ranked]:
    """The contenders of each problem that has contenders, by its name, in the order to benchmark them."""
    fields = []
    for each in searched:
        group = () if each.result is None else contenders(_problem(each), each.result, benchmark.target)
        if group:
            fields.append(group)
    order = {}
    for place in ranked(fields, _with_progress(benchmark, "Finalists", say), folder):
        first = place.contenders[0]
        order[first.problem.name] = place
        if place.compared:
            configuration = first.entry.dispatch.configuration.name
            say(
                f"[Finalists]: {first.problem.name}: {configuration} is the fastest of {place.compared} beside each other"
            )
    return order


def _problem(searched: Searched) -> TuningProblem:
    tuning = searched.tuning
    return TuningProblem(tuning.name, tuning.operation, tuning.count, tuning.origin)


def _without_finalist(searched: Searched, target: Target) -> Judged:
    """The judgement of a problem for which the search found nothing faster."""
    untuned = None if searched.result is None else untuned_best(searched.result, target)
    reason = (
        searched.failure or "no candidate was verified in the search"
        if untuned is None
        else f"no configuration was faster than {untuned.configuration.name} in the search"
    )
    finalist = Finalist(_problem(searched), None if untuned is None else untuned.record)
    return Judged(finalist, Judgement.NO_FINALIST, reason)


def _with_share(judged: Judged, weights: Weights) -> Judged:
    """`judged` with its share. Other finalists of the same problem have no share, so that shares can be added."""
    finalist = judged.finalist
    return replace(judged, finalist=replace(finalist, share=weights.shares.get(finalist.problem.name)))


def _settings(benchmark: Benchmark, rule: KeepRule, packed: int) -> dict[str, object]:
    return {
        "target": benchmark.target.name,
        "device": benchmark.evaluator.device,
        "compiler": benchmark.compiler.revision,
        "threshold": rule.threshold,
        "packed_weights": packed,
    }
