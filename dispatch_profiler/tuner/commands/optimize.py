"""The steps of `optimize` and `tune`: search, merge the winners, benchmark them, and keep the faster ones in a library."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import say, say_table, show
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.files.regular import atomic_file, write_atomic
from dispatch_profiler.library import Entry, KeepRule, Library, library_file
from dispatch_profiler.library.library import old_spec_hint
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.records.record_file import to_line
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.commands.arguments import (
    RECORDS_FILE,
    STORAGE_FILE,
    StepOptions,
    own_device,
)
from dispatch_profiler.tuner.commands.live_view import shown
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.evaluation.stopwatch import Times
from dispatch_profiler.tuner.report.page import (
    REPORT_FILE,
    SEARCH_REPORT_FILE,
    TuningOutcome,
    render_search,
    render_tuning,
)
from dispatch_profiler.tuner.results.entries import EntrySpeedups, entry_speedups
from dispatch_profiler.tuner.results.finalists import (
    Bench,
    Benchmark,
    Contender,
    Ranked,
    benchmarked,
    contenders,
    keeping,
    kept_entry,
    ranked,
    untuned_rival,
)
from dispatch_profiler.tuner.results.uplift import (
    FINAL_FILE,
    METRICS_FILE,
    RAW_FILE,
    Finalist,
    Judged,
    Judgement,
    Uplift,
    judge,
    line_of,
    uplift_lines,
    write_results,
)
from dispatch_profiler.tuner.search.events import Compiling, Evaluated, Event, Measuring, Resumed
from dispatch_profiler.tuner.search.progress import SearchProgress
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.strategies import expects_gain
from dispatch_profiler.tuner.tunings.problems import TIME, problem_of, read_summary
from dispatch_profiler.tuner.tunings.tuning_file import Searched, Tuning, search_tunings

# -- benchmark rounds ------------------------------------------------------------------------------

# The benchmark of finalists, in rounds: if the first one of a problem turns out to be wrong, the next one is measured.


#: Judgements after which the other tuned finalists are not measured, because they are no faster.
_OF_SPEED = (Judgement.SLOWER, Judgement.INTERVAL_OVERLAPS, Judgement.BELOW_THRESHOLD)


class BenchmarkRounds:
    """Benchmarks the contenders of each problem in their order until one is kept or none is left.

    `fields` has the contenders by the name of the problem. Prints a line for each judgement. The library in the folder
    `final` has each entry as soon as it is kept, so that an interruption loses none; until then, entries of earlier runs
    stay in it.
    """

    def __init__(self, fields: Mapping[str, Ranked], bench: Bench, rule: KeepRule, final: Path) -> None:
        self._fields = fields
        self._bench = bench
        self._rule = rule
        self._final = final
        self._earlier = Library.load(final).entries if library_file(final).exists() else ()
        self._waiting = {name: list(field.contenders) for name, field in fields.items()}
        self._tried: dict[str, list[tuple[Contender, Judged]]] = {name: [] for name in fields}
        #: The entries of the final library, by the names of their problems.
        self.kept: dict[str, Entry] = {}
        self._speedups: dict[str, EntrySpeedups] = {}

    def first_winners(self) -> Library:
        """The library of the entries that are measured in the first round."""
        return Library(field.contenders[0].entry for field in self._fields.values())

    def run(self, winners: Path) -> None:
        """Measure everything, compiled from the library in the folder `winners`.

        Raises TargetError if the device does not open.
        """
        entries: dict[str, Entry] = {}
        while turn := {name: waiting.pop(0) for name, waiting in self._waiting.items() if waiting}:
            entries |= {name: each.entry for name, each in turn.items()}
            Library(entries.values()).save(winners)
            for finalist in benchmarked(list(turn.values()), Library.load(winners), self._bench):
                self._take(turn[finalist.problem.name], finalist)

    def _take(self, contender: Contender, finalist: Finalist) -> None:
        """Judge a finalist, and decide whether others of its problem are measured."""
        name, judged = finalist.problem.name, judge(finalist, self._rule)
        more = ""
        if judged.is_kept:
            self.kept[name] = kept_entry(contender.entry, finalist)
            self._speedups[name] = speedups = _speedups(contender, finalist, self._bench.benchmark.target)
            more = "; an untuned launch runs the kept one, too" if speedups.is_launched_anyway else ""
        say(f"[Benchmark]: {line_of(judged, in_full=True)}{more}")
        self._tried[name].append((contender, judged))
        if judged.is_kept:
            self._waiting[name] = []
            self._save()
        elif judged.judgement in _OF_SPEED:
            self._waiting[name] = [each for each in self._waiting[name] if self._is_untuned(each)]

    def _save(self) -> None:
        """Write what is kept so far, and what earlier runs kept for the other problems."""
        others = self.earlier_of_others({entry.operation for entry in self.kept.values()})
        Library([*others, *self.kept.values()]).save(self._final)

    def earlier_of_others(self, operations: Collection[Operation]) -> list[Entry]:
        """The entries that earlier runs kept for other operations."""
        return [entry for entry in self._earlier if entry.operation not in operations]

    def _is_untuned(self, contender: Contender) -> bool:
        return contender.is_untuned(self._bench.benchmark.target)

    def judged(self, name: str) -> Judged | None:
        """The judgement of a problem, with its other finalists and its entry; None if it has no contender."""
        if name not in self._fields:
            return None
        return replace(self._judged(name), entry=self._speedups.get(name))

    def _judged(self, name: str) -> Judged:
        tried = self._tried[name]
        tuned = [judged for contender, judged in tried if not self._is_untuned(contender)]
        form = next((judged for contender, judged in tried if self._is_untuned(contender)), None)
        if not tuned:
            assert form is not None  # every problem here has a contender
            return _of_untuned(form, _no_finalist(tried[0][0].rival(self._bench.benchmark.target)))
        first = next((each for each in tuned if each.is_kept), tuned[0])
        reason = first.reason
        if form is not None and form.is_kept:
            reason += f"; {_name(form)}, the fastest known form, is in the library: it is faster than the compiler's default"
        measured = {_name(each) for each in tuned}
        beaten = [each for each in self._fields[name].beaten if _name(each) not in measured]
        others = [each for each in tuned if each is not first]
        return replace(first, reason=reason, others=(*others, *beaten))


def _speedups(contender: Contender, finalist: Finalist, target: Target) -> EntrySpeedups:
    """The speedups of a kept finalist."""
    assert finalist.default is not None and finalist.speedup is not None
    reference, speedup = finalist.default.configuration, finalist.speedup
    return entry_speedups(contender.entry.dispatch, reference, speedup, contender.evaluations, target)


def _name(judged: Judged) -> str:
    tuned = judged.finalist.tuned
    return "" if tuned is None else tuned.configuration


def _no_finalist(rival: Evaluation | None) -> str:
    """Why nothing is benchmarked, with the untuned configuration that was as fast in the search."""
    name = "the fastest known form" if rival is None else rival.configuration.name
    return f"no configuration was 2 % faster than {name} in the search"


def _of_untuned(judged: Judged, reason: str) -> Judged:
    """The judgement of a problem whose fastest form needed no tuning: it is no uplift, even if the library contains it."""
    finalist = judged.finalist
    if judged.is_kept:
        reason += f"; {_name(judged)} is in the library because it is faster than the compiler's default"
    return Judged(Finalist(finalist.problem, finalist.tuned), Judgement.NO_FINALIST, reason)


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
                f"--log-summary: {summary} does not have {tuning.name} ({tuning.operation.name})",
                hint="pass the summary.csv that gen_configs wrote beside the tuning files",
            )
        if row.percent is not None:
            shares[tuning.name] = row.percent
    return Weights(shares, next((row.weighed_by for row in rows.values()), TIME))


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
            f"{outputs.library} is a library for {', '.join(others)}, not for {target.name}",
            hint="name another folder",
        )
    foreign = [entry.operation.name for entry in library.entries if entry.operation not in operations]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"{outputs.library} has entries of other tunings: {', '.join(foreign[:3])}{more}",
            hint="name another folder, and merge the libraries afterwards with dispatch-profiler merge",
        )


def finish(
    searched: Sequence[Searched],
    bench: Bench,
    outputs: Outputs,
    rule: KeepRule,
    weights: Weights,
) -> tuple[Library, Uplift]:
    """The steps after the search: writes the results and the final library, and returns the library and the uplift.

    Raises TargetError if the device does not open.
    """
    benchmark = bench.benchmark
    fields = _ranked(searched, bench)
    rounds = BenchmarkRounds(fields, bench, rule, outputs.library)
    winners = rounds.first_winners()
    file = winners.save(outputs.results / WINNERS)
    say(f"[Merge]: {counted(len(winners), 'winner')} of {counted(len(searched), 'problem')} in {file}")
    rounds.run(outputs.results / WINNERS)
    kept = [rounds.kept[name] for name in fields if name in rounds.kept]
    final = Library(kept)
    # A search of a limited time leaves problems out, whose entries stay as they are.
    Library([*rounds.earlier_of_others({each.tuning.operation for each in searched}), *kept]).save(
        outputs.library
    )
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
    return final, uplift


def _ranked(searched: Sequence[Searched], bench: Bench) -> dict[str, Ranked]:
    """The contenders of each problem that has contenders, by its name, in the order to benchmark them."""
    fields = []
    for each in searched:
        group = (
            ()
            if each.result is None
            else contenders(problem_of(each.tuning), each.result, bench.benchmark.target)
        )
        if group:
            fields.append(group)
    order = {}
    for place in ranked(fields, bench):
        first = place.contenders[0]
        order[first.problem.name] = place
        if place.compared:
            configuration = first.entry.dispatch.configuration.name
            say(
                f"[Finalists]: {first.problem.name}: {configuration} is the fastest of {place.compared} beside each other"
            )
    return order


def _without_finalist(searched: Searched, target: Target) -> Judged:
    """The judgement of a problem for which the search found nothing faster."""
    result = searched.result
    rival = None if result is None else untuned_rival(result.operation, result.evaluations, target)
    none_verified = searched.failure or "no candidate was verified in the search"
    reason = none_verified if rival is None else _no_finalist(rival)
    finalist = Finalist(problem_of(searched.tuning), None if rival is None else rival.record)
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


# -- output ----------------------------------------------------------------------------------------

# The steps of `optimize` and `tune`, with their output.


def run_search(
    tunings: Sequence[Tuning], files: Path, steps: StepOptions, bench: Bench | None = None
) -> tuple[Searched, ...]:
    """Search for the fastest configuration of each problem, and print the results.

    Writes the records of all evaluations to the folder `files`. The processes of `bench` start beside the first builds.
    Raises TargetError if nothing was searched, for example because the device does not open: no file is written then.
    A KeyboardInterrupt says what is stored.
    """
    budgets = {each.operation: each.evaluations for each in tunings}
    modules = {each.operation: each.modules for each in tunings}
    early = any(each.least_gain > 0.0 and expects_gain(each.strategy) for each in tunings)
    place, stored = steps.storage or files / STORAGE_FILE, dict[Operation, int]()
    try:
        with (
            open_storage(place) as storage,
            shown(
                SearchProgress(budgets, steps.search.seconds, modules=modules, ends_early=early)
            ) as show_event,
        ):

            def listen(event: Event) -> None:
                if isinstance(event, Resumed):
                    stored[event.operation] = event.evaluations
                elif isinstance(event, Evaluated):
                    stored[event.evaluation.dispatch.operation] = event.done
                show_event(event)
                if bench is not None and isinstance(event, Compiling):
                    bench.start_ahead()
                elif bench is not None and isinstance(event, Measuring):
                    bench.wait()

            problems, times = search_tunings(tunings, storage, steps.search, steps.library, listen)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_stored_text(sum(stored.values()), len(tunings), place)) from None
    if all(each.result is None for each in problems):
        say("Nothing was measured: results and libraries are unchanged")
        raise TargetError(problems[0].failure)
    _write_records(files / RECORDS_FILE, problems)
    _report_search(problems, times, files / RECORDS_FILE)
    return problems


def _stored_text(stored: int, problems: int, place: Path | str) -> str:
    """What an interrupted search leaves, and what the same command does with it."""
    if not stored:
        return "nothing was measured yet, and the same command begins anew"
    evaluations = f"{counted(stored, 'evaluation')} of {counted(problems, 'problem')}"
    return f"{place} has {evaluations}, and the same command continues from there"


@contextlib.contextmanager
def opened_bench(tuning: Tuning, steps: StepOptions) -> Iterator[tuple[Bench, StepOptions]]:
    """What benchmarks the winners of searches like `tuning`, and options of a search that shares its processes and references.

    If several devices share the search, the first of them on this machine measures the finalists.
    """
    with tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        evaluator = replace(steps.search.evaluator, references=Path(folder))
        steps = replace(steps, search=replace(steps.search, evaluator=evaluator))
        benchmark = Benchmark(
            tuning.target,
            compiler_for(tuning.target),
            steps.benchmark_evaluator(own_device(steps.search.devices, tuning.device)),
            steps.benchmark_build,
            references=Path(folder),
            cache=steps.search.cache,
            test=keeping(steps.rule),
            say=lambda line: say(f"[Benchmark]: {line}"),
        )
        with Bench(benchmark) as bench:
            bench.builder.start_ahead()
            search = replace(steps.search, builder=bench.builder, compiles_winners=True, hashes=bench.hashes)
            yield bench, replace(steps, search=search)


def report_search(problems: Sequence[Searched], files: Path) -> None:
    """Write the report of a search whose winners are not benchmarked to the folder `files`."""
    targets = ", ".join(dict.fromkeys(each.tuning.target.name for each in problems))
    write_atomic(files / SEARCH_REPORT_FILE, render_search(problems, f"Search for {targets}"))
    say(f"Writing the searches to {files / SEARCH_REPORT_FILE}; nothing is benchmarked yet")


def _write_records(path: Path, problems: Sequence[Searched]) -> None:
    """Write the record of every evaluation, for `report`."""
    with atomic_file(path) as file:
        for problem in problems:
            for evaluation in problem.result.evaluations if problem.result else ():
                file.write(to_line(evaluation.record).encode() + b"\n")


def _report_search(problems: Sequence[Searched], times: Times, records: Path) -> None:
    count = sum(len(each.result.evaluations) for each in problems if each.result)
    say(
        f"The fastest of {counted(count, 'evaluation')} of {counted(len(problems), 'problem')}; records in {records}:"
    )
    say_table(_row(each) for each in problems)
    if not times.compiling + times.measuring:
        return  # everything was stored
    say(
        f"compiling {times.compiling:.1f} s, measuring {times.measuring:.1f} s, neither {times.other:.1f} s "
        f"({100.0 * times.overhead:.1f} %)"
    )


def _row(problem: Searched) -> tuple[str, ...]:
    result = problem.result
    name, label = problem.tuning.name, problem_of(problem.tuning).label
    if result is None:
        return name, label, "", "", problem.failure
    if result.best is None:
        return name, label, "", "", "no candidate was verified"
    default, best = result.default and result.default.milliseconds, result.best.milliseconds
    assert best is not None
    speedup = f"{default / best:.2f}x the default" if default else "no default"
    return name, label, f"{best:.4g} ms", speedup, result.best.configuration.name


def _why_none(searched: Sequence[Searched]) -> str:
    """Why the final library has no entry, behind their number."""
    nothing = "nothing is faster than the compiler's untuned code"
    verified = sum(not each.is_failure for each in searched)
    if verified == len(searched):
        return f": {nothing}"
    return (
        f": of {verified} with a verified candidate, {nothing}" if verified else ": no candidate was verified"
    )


def check_same_target(tunings: Sequence[Tuning], steps: StepOptions) -> None:
    """Raise UsageError if the tunings are for several targets or devices: a library is for one."""
    devices = steps.search.devices[:1]
    for what, names in (
        ("targets", dict.fromkeys(each.target.name for each in tunings)),
        ("devices", dict.fromkeys(devices or [each.device for each in tunings])),
    ):
        if len(names) > 1:
            raise UsageError(
                f"the tuning files are for several {what}, but a library is for one: {', '.join(names)}",
                hint="put the tuning files of each in a folder of its own, or search only: --only=search",
            )


def finish_tunings(
    searched: Sequence[Searched], bench: Bench, outputs: Outputs, weights: Weights, rule: KeepRule
) -> None:
    """Merge, benchmark and filter the winners, and print the uplift. The tunings must be for one target and device."""
    try:
        library, uplift = finish(searched, bench, outputs, rule, weights)
    except TargetError as error:
        raise TargetError(
            f"the device failed after the search: {error.message}",
            hint="the search is stored, and the library has what was confirmed; repeat the command when the device works",
        ) from error
    except KeyboardInterrupt:
        file = library_file(outputs.library)
        count = len(Library.load(outputs.library)) if file.exists() else 0
        confirmed = (
            f"{file} has {counted(count, 'confirmed entry')}" if count else "no entry is confirmed yet"
        )
        raise KeyboardInterrupt(
            f"the search is done and stored, and {confirmed}; the same command confirms the rest"
        ) from None
    names = ", ".join((RAW_FILE, FINAL_FILE, METRICS_FILE, REPORT_FILE))
    say(f"[Postprocess]: {outputs.results} has {names}")
    count = len(library)
    say(
        f"[Postprocess]: {library_file(outputs.library)} has {counted(count, 'entry')} of "
        f"{counted(len(searched), 'problem')}" + ("" if count else _why_none(searched))
    )
    if hint := old_spec_hint(outputs.library):
        say(hint)
    for line in uplift_lines(uplift, weights.unit):
        show(line)


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.optimize_cli"))
