"""Searched problems -> a library: merge the winners, benchmark them, and keep those that are faster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import KeepRule, Library, library_file
from dispatch_profiler.operations import Operation
from dispatch_profiler.plurals import counted
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.finalists import (
    Benchmark,
    Contender,
    benchmarked,
    kept_entry,
    untuned_best,
    winner,
)
from dispatch_profiler.tuner.problems import Problem
from dispatch_profiler.tuner.results import write_results
from dispatch_profiler.tuner.shares import TIME, read_summary
from dispatch_profiler.tuner.tuning_file import Tuning
from dispatch_profiler.tuner.tuning_search import Searched
from dispatch_profiler.tuner.uplift import Finalist, Judged, Judgement, Uplift, judge

#: The folder of the merged winners, among the results.
WINNERS = "winners"


@dataclass(frozen=True)
class Outputs:
    """Folders that are written: the final library, and the results."""

    library: Path
    results: Path


@dataclass(frozen=True)
class Weights:
    """The percentage of each problem in its workload, by the problem's name; `unit` is what was weighed."""

    shares: Mapping[str, float] = field(default_factory=dict)
    unit: str = TIME


def weights_of(tunings: Sequence[Tuning], summary: Path) -> Weights:
    """What a `summary.csv` says about the problems of `tunings`. Raises UsageError if it is one of other problems."""
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
            raise UsageError(f"{path} is a file", hint="name a folder")
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
    contenders, judged = _merged(searched, benchmark)
    winners = Library(each.entry for each in contenders.values())
    file = winners.save(outputs.results / WINNERS)
    say(f"[Merge]: {counted(len(winners), 'winner')} of {counted(len(searched), 'problem')} in {file}")
    kept = {}
    with tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        library = Library.load(outputs.results / WINNERS)
        for finalist in benchmarked(list(contenders.values()), library, benchmark, Path(folder)):
            name = finalist.problem.name
            found = judge(finalist, rule)
            say(f"[Benchmark]: {line_of(found)}")
            if found.is_kept:
                kept[name] = kept_entry(contenders[name].entry, finalist)
            is_untuned = contenders[name].is_untuned(benchmark.target)
            judged[name] = _of_untuned(found) if is_untuned else found
    final = Library(kept.values())
    final.save(outputs.library)
    every = [_with_share(judged[each.tuning.name], weights) for each in searched]
    uplift = write_results(outputs.results, every, _settings(benchmark, rule))
    return Finished(tuple(every), final, uplift)


def _of_untuned(found: Judged) -> Judged:
    """The judgement of a problem whose fastest form needed no tuning: it is no uplift, also if the library has it."""
    finalist = found.finalist
    name = finalist.tuned.configuration if finalist.tuned is not None else "the fastest known form"
    reason = f"no configuration was faster than {name} in the search"
    if found.is_kept:
        reason += ", which is in the library because it is faster than the compiler's default"
    return Judged(Finalist(finalist.problem, finalist.tuned), Judgement.NO_FINALIST, reason)


def _merged(
    searched: Sequence[Searched], benchmark: Benchmark
) -> tuple[dict[str, Contender], dict[str, Judged]]:
    """The winners, and the judgement of each problem that has none, by the names of the problems."""
    contenders, judged = {}, {}
    for each in searched:
        tuning, result = each.tuning, each.result
        problem = Problem(tuning.name, tuning.operation, tuning.count, tuning.origin)
        entry = None if result is None else winner(result, benchmark.target)
        if entry is not None:
            contenders[problem.name] = Contender(problem, entry)
            continue
        untuned = None if result is None else untuned_best(result, benchmark.target)
        reason = (
            each.failure or "no candidate was verified in the search"
            if untuned is None
            else f"no configuration was faster than {untuned.configuration.name} in the search"
        )
        finalist = Finalist(problem, None if untuned is None else untuned.record)
        judged[problem.name] = Judged(finalist, Judgement.NO_FINALIST, reason)
    return contenders, judged


def line_of(judged: Judged) -> str:
    """`BBS_TN_0: kept: tile_config_64x128, 1.52 times as fast (1.48-1.56)`"""
    finalist = judged.finalist
    name = f"{finalist.problem.name}: {judged.judgement.value}"
    configuration = f": {finalist.tuned.configuration}" if finalist.tuned is not None else ""
    if judged.is_kept:
        speedup = judged.kept_speedup
        return (
            f"{name}{configuration}, {speedup.value:.2f} times as fast ({speedup.low:.2f}-{speedup.high:.2f})"
        )
    return f"{name}{configuration}: {judged.reason}"


def _with_share(judged: Judged, weights: Weights) -> Judged:
    finalist = judged.finalist
    return replace(judged, finalist=replace(finalist, share=weights.shares.get(finalist.problem.name)))


def _settings(benchmark: Benchmark, rule: KeepRule) -> dict[str, object]:
    return {
        "target": benchmark.target.name,
        "device": benchmark.evaluator.device,
        "compiler": benchmark.compiler.revision,
        "threshold": rule.threshold,
    }
