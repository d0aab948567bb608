"""The winners of searches, measured again beside the untuned configurations.

    winners -> library -> `tile_config_tuned`, compiled -> verified records -> paired sampling

Winners are compiled from the library as any user would compile them, and measured on fresh samples: the fastest of many
candidates was also the luckiest. The untuned configurations are in the modules of the search. Before that, the best few of
a search are measured beside each other, which decides their order. What the search itself shows to be as fast as an untuned
configuration is not measured again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler import Cache, Compiler
from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, KeepRule, Library
from dispatch_profiler.library.entry import confirmed_speedup, measured_gflops
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.compare.live import (
    CandidateComparison,
    LiveOptions,
    confirmation_of,
)
from dispatch_profiler.profiler.compare.pairing import Pair
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.paired_sampling import PairLimit
from dispatch_profiler.profiler.records.record import Confirmation, StoredRecord, Verdict, stored
from dispatch_profiler.profiler.statistics.comparison import Outcome, SequentialTestOptions
from dispatch_profiler.profiler.verification.verify import VerifiedHashes
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.building import BuildOptions, CandidateBuilder
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.results.entries import launched, ratio_of
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement
from dispatch_profiler.tuner.search.search import OperationResult
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.problems import TuningProblem

#: Problems that are measured in turns before each of them is compared.
_AT_ONCE = 8
#: Time limit of a comparison. The compiler's default may take 50 ms: a sample has as many executions on both sides
#: unless they are far apart, so that 15 rounds take 30 s.
_PAIR_SECONDS = 90.0
#: After a search, a comparison takes at most this part of the time that was spent on the problem, but at least these
#: seconds; in proportion less if a smaller gain than this is at stake, so that all of the benchmark takes less than a
#: quarter of a run.
_PAIR_PART, _LEAST_PAIR_SECONDS, _FULL_GAIN = 1.0 / 8.0, 10.0, 0.05
#: An untuned configuration that took this many times as long as the fastest one in the search is not measured again: a
#: search knows times to 5 %.
_SLOW = 1.25
#: The relative difference up to which either of two configurations is as good.
_MARGIN = 0.02
#: The confidence of the test whether a winner is kept. It may end with any gain, however small, so that a lower one, such as
#: 98 %, would often keep one of two equal sides. It mostly ends at its first look, after 15 rounds.
_CONFIDENCE = 0.9995


@dataclass(frozen=True)
class Contender:
    """A problem, and the entry of a library that may replace the untuned configuration.

    `evaluations` are those of the search, which spent `search_seconds` on the problem.
    """

    problem: TuningProblem
    entry: Entry
    evaluations: tuple[Evaluation, ...] = ()
    search_seconds: float = math.inf

    @property
    def pair_seconds(self) -> float:
        """The time limit of its comparison with the untuned configuration, once there is a first result."""
        return max(_LEAST_PAIR_SECONDS, _PAIR_PART * self.search_seconds)

    @property
    def ranking_seconds(self) -> float:
        """The time limit of its comparison with another finalist of the problem, once there is a first result."""
        return min(_MOST_RANKING_SECONDS, max(_LEAST_RANKING_SECONDS, _RANKING_PART * self.search_seconds))

    @property
    def evaluation(self) -> Evaluation | None:
        """The entry's evaluation in the search."""
        return self._evaluation_of(self.entry.dispatch.configuration)

    def _evaluation_of(self, configuration: Configuration) -> Evaluation | None:
        return next((each for each in self.evaluations if each.configuration == configuration), None)

    def seconds_beside(self, reference: StoredRecord, tuned: StoredRecord, untuned: Configuration) -> float:
        """The time limit of its comparison with `untuned`, whose fresh record is `reference`; `tuned` is its own.

        All of `pair_seconds` if the gain by these records or in the search is 5 % or unknown, a part for less, and at
        least `ranking_seconds`.
        """
        searched = [self._evaluation_of(each) for each in (untuned, self.entry.dispatch.configuration)]
        slow, fast = (None if each is None else each.milliseconds for each in searched)
        gain = max(_gain(slow, fast), _gain(_milliseconds(reference), _milliseconds(tuned)))
        part = gain / _FULL_GAIN
        return self.pair_seconds if part >= 1.0 else max(self.ranking_seconds, part * self.pair_seconds)

    @property
    def untimed(self) -> StoredRecord | None:
        """The entry's record in the search, without times: they were shortest among many."""
        return None if self.evaluation is None else replace(self.evaluation.record, measurement=None)

    def rival(self, target: Target) -> Evaluation | None:
        """The untuned configuration that was as fast as anything tuned in the search; None if something was faster."""
        return untuned_rival(self.problem.operation, self.evaluations, target)

    def is_untuned(self, target: Target) -> bool:
        """Whether the entry is the fastest known form, unchanged: it needs no tuning."""
        return self.entry.dispatch.configuration in baselines(self.problem.operation, target)

    def references(self, target: Target) -> tuple[Configuration, ...]:
        """The other untuned configurations that may be the fastest of them: the entry is compared with that one.

        One of them is the kernel that launches use without an entry, for a constant weight if the entry packs it.
        Configurations that were far slower in the search than the fastest of these are left out.
        """
        untuned = _untuned_beside(self.entry.dispatch, target)
        times = {each.configuration: each.milliseconds for each in self.evaluations if each.milliseconds}
        known = {each: times.get(each, 0.0) for each in untuned}
        slow = _SLOW * min(filter(None, known.values()), default=math.inf)
        return tuple(each for each, time in known.items() if time < slow)


def _untuned_beside(dispatch: Dispatch, target: Target) -> tuple[Configuration, ...]:
    """The other configurations that are used without tuning, with the kernel that a launch of `dispatch` would use."""
    operation, configuration = dispatch.operation, dispatch.configuration
    every = dict.fromkeys((*baselines(operation, target), launched(dispatch, target)))
    return tuple(each for each in every if each != configuration)


def _gain(slow_ms: float | None, fast_ms: float | None) -> float:
    """How much longer the first time is, relative to the second; infinite if one of them is unknown."""
    return slow_ms / fast_ms - 1.0 if slow_ms and fast_ms else math.inf


def keeping(rule: KeepRule) -> SequentialTestOptions:
    """The test whether `rule` keeps a winner.

    It ends once that is certain, or a gain of 2 % above the rule's threshold is ruled out.
    """
    gain = rule.threshold + _MARGIN
    return SequentialTestOptions(threshold=rule.threshold, least_gain=gain, confidence=_CONFIDENCE)


def _ignore(line: str) -> None:
    """For callers that show no progress."""


@dataclass
class _StepProgress:
    """Passes lines to `say`, with the number of steps done out of `total`."""

    say: Callable[[str], None]
    total: int
    done: int = 0

    def add(self, line: str) -> None:
        """Another step is done."""
        self.done += 1
        self.say(f"{line}  [{self.done} of {self.total}]")


@dataclass(frozen=True)
class Benchmark:
    """Where and how contenders are measured. `evaluator` names the device.

    `test` says when paired sampling ends; it takes at most `pair_seconds`. `references` is a cache of expected results,
    `cache` has the builds of the search. `say` is called with a line for each dispatch that is compiled or measured, and
    each comparison that begins.
    """

    target: Target
    compiler: Compiler
    evaluator: EvaluatorOptions
    build: BuildOptions = BuildOptions()
    test: SequentialTestOptions = SequentialTestOptions()
    pair_seconds: float = _PAIR_SECONDS
    references: Path | None = None
    cache: Cache | None = None
    say: Callable[[str], None] = _ignore

    @property
    def paired(self) -> LiveOptions:
        """How two configurations are compared."""
        return LiveOptions(
            self.evaluator.device,
            self.test,
            seconds=self.pair_seconds,
            limit_seconds=self.evaluator.seconds,
            seed=self.evaluator.seed,
            references=self.references,
        )


def untuned_best(result: OperationResult, target: Target) -> Evaluation | None:
    """The fastest verified configuration that is used without tuning; None if none was verified.

    Also if it was abandoned, because another configuration is faster: that one may turn out to be wrong.
    """
    untuned = baselines(result.operation, target)
    timed = [each for each in result.evaluations if each.configuration in untuned and each.milliseconds]
    return min(timed, key=_time, default=None)


def entry_of(evaluation: Evaluation, result: OperationResult, target: Target) -> Entry:
    """An evaluation with a time as an entry, with the speeds of the search."""
    is_untuned = evaluation.configuration in baselines(result.operation, target)
    reference = result.default if is_untuned else untuned_best(result, target)
    measurement = evaluation.record.measurement
    assert measurement is not None
    gflops = measured_gflops(measurement, result.operation.flops)
    return Entry(evaluation.dispatch, gflops, _speedup(reference, evaluation), evaluation.record.provenance)


def _speedup(reference: Evaluation | None, best: Evaluation) -> Estimate:
    """The ratio of two separate measurements."""
    one = None if reference is None else reference.record.measurement
    other = best.record.measurement
    return Estimate(1.0, 0.0, math.inf) if one is None or other is None else ratio_of(one, other)


class Bench(Closing):
    """What finalists are measured with, as `benchmark` says: a compiler, and processes that persist between comparisons.

    `hashes` has the results that were verified, by a search too if it shares them.
    """

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark
        self._open = contextlib.ExitStack()
        builder = CandidateBuilder(benchmark.target, benchmark.build, benchmark.cache, benchmark.compiler)
        options = replace(benchmark.evaluator, verify=True, profile=True, references=benchmark.references)
        self._builder = self._open.enter_context(builder)
        self.hashes = VerifiedHashes()
        self.evaluator = self._open.enter_context(Evaluator(options, hashes=self.hashes))
        self.comparison = self._open.enter_context(CandidateComparison(benchmark.paired, self.hashes))
        self._starting = self._open.enter_context(ThreadPoolExecutor(2, thread_name_prefix="start"))
        self._started: tuple[Future[None], ...] = ()

    @property
    def builder(self) -> CandidateBuilder:
        """What compiles candidates; a search may use it, too."""
        return self._builder

    def start_ahead(self) -> None:
        """Begin to start all processes, such as while a search compiles. `start` reports errors."""
        if not self._started:
            steps = self.comparison.prepare, self.evaluator.start
            self._started = tuple(map(self._starting.submit, steps))

    def wait(self) -> None:
        """Wait for processes that are being started: they would disturb what is measured meanwhile."""
        wait(self._started)

    def start(self) -> None:
        """Start all processes at once, unless they were: nothing is measured meanwhile.

        Raises TargetError if the device does not open.
        """
        self.start_ahead()
        self.wait()
        self.evaluator.check_device()

    def candidates(self, wanted: Sequence[Dispatch], evaluated: Iterable[Evaluation]) -> list[Candidate]:
        """A candidate for each of `wanted`: with the module that a search measured, if it is in `evaluated`, or compiled now."""
        found = self._builder.again(each for each in evaluated if each.dispatch in wanted)
        missing = [each for each in wanted if each not in found]
        if missing:
            known = [found[each] for each in wanted if each in found]
            steps = _StepProgress(self.benchmark.say, len(missing))
            with self._preparing(dict.fromkeys(each.operation for each in wanted), known):
                built = self._builder.candidates(
                    missing, done=lambda each: steps.add(f"compiled {each.dispatch.name}")
                )
            found |= zip(missing, built, strict=True)
        return [found[each] for each in wanted]

    @contextlib.contextmanager
    def _preparing(self, operations: Iterable[Operation], known: Iterable[Candidate]) -> Iterator[None]:
        """Compute references and verify what is `known` in the meantime: the processes wait for the compiler."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="preparation")
        try:
            for operation in operations:
                pool.submit(self.evaluator.prepare, operation)
            for candidate in known:
                pool.submit(self.evaluator.verify, candidate)
            yield
        finally:
            # What was not begun is done when its candidate is measured.
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End all processes."""
        self._open.close()


@dataclass(frozen=True)
class _Sides:
    """The candidates that are compared: untuned ones, and the entry of a library. Without an entry, `problem` says why."""

    untuned: tuple[Candidate, ...]
    tuned: Candidate | None = None
    problem: str = ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.untuned if self.tuned is None else (*self.untuned, self.tuned)


def benchmarked(contenders: Sequence[Contender], library: Library, bench: Bench) -> Iterator[Finalist]:
    """The finalist of each contender, in order, measured with the entry of `library` for its operation.

    Compiles all entries. Then a few problems at a time are measured, and each of these is compared and yielded. Raises
    TargetError if the device does not open.
    """
    if not contenders:
        return
    bench.start()
    sides = _sides(contenders, library, bench)
    steps = _StepProgress(bench.benchmark.say, sum(len(each.candidates) for each in sides))
    for at in range(0, len(contenders), _AT_ONCE):
        group = list(zip(contenders, sides, strict=True))[at : at + _AT_ONCE]
        records = _records(bench.evaluator, [each for _, own in group for each in own.candidates], steps)
        for contender, own in group:
            yield _finalist(contender, own, records, bench)


def _sides(contenders: Sequence[Contender], library: Library, bench: Bench) -> list[_Sides]:
    """The sides to compare for each contender: references, and the entry of `library`, compiled as any user would."""
    target, revision = bench.benchmark.target, bench.benchmark.compiler.revision
    # Searches that may not pack weights have no entries that do.
    tuned = TunedConfigurations(library, target, revision, packed_weights=True)
    lookups = [tuned.of(each.problem.operation) for each in contenders]
    untuned = [
        [Dispatch(each.problem.operation, reference) for reference in each.references(target)]
        for each in contenders
    ]
    wanted = [each for group in untuned for each in group]
    wanted += [lookup.dispatch for lookup in lookups if lookup.dispatch is not None]
    known = (each for contender in contenders for each in contender.evaluations)
    found = dict(zip(wanted, bench.candidates(wanted, known), strict=True))
    return [
        _Sides(
            tuple(found[each] for each in group),
            None if lookup.dispatch is None else found[lookup.dispatch],
            lookup.problem,
        )
        for group, lookup in zip(untuned, lookups, strict=True)
    ]


def _records(
    evaluator: Evaluator, candidates: Sequence[Candidate], steps: _StepProgress
) -> dict[Dispatch, StoredRecord]:
    """The fresh record of each dispatch."""
    records = {}
    for record in evaluator.records(candidates):
        records[record.dispatch] = kept = stored(record)
        steps.add(f"measured {kept.outcome}")
    return records


def _finalist(
    contender: Contender, sides: _Sides, records: Mapping[Dispatch, StoredRecord], bench: Bench
) -> Finalist:
    """Compare the entry of `contender` with the fastest correct one of the untuned sides."""
    problem, name, candidate = contender.problem, contender.entry.dispatch.configuration.name, sides.tuned
    untuned = [(each, records[each.dispatch]) for each in sides.untuned]
    correct = [each for each in untuned if _milliseconds(each[1]) is not None]
    reference = min(correct, key=lambda each: _milliseconds(each[1]) or 0.0, default=None)
    default = (reference or untuned[0])[1]
    if candidate is None:
        reason = sides.problem or "the library has no entry"
        return Finalist(problem, default, _not_compiled(default, name, reason))
    record = replace(records[candidate.dispatch], configuration=name)
    if record.verdict is not Verdict.SUCCESS:
        return Finalist(problem, default, record, is_transient=candidate.is_transient)
    if reference is None:
        reason = f"no untuned configuration is correct ({default.verdict.value}: {default.reason})"
        return Finalist(problem, default, record, Confirmation(Outcome.NOT_MEASURED.value, reason))
    most = bench.benchmark.pair_seconds
    bench.benchmark.say(f"comparing {problem.label} for at most {most:g} s")
    seconds = contender.seconds_beside(default, record, reference[0].dispatch.configuration)
    limit = PairLimit(min(most, seconds), most)
    paired: Pair = next(iter(bench.comparison.compared([(reference[0], candidate)], limit)))
    return Finalist(problem, default, record, confirmation_of(paired))


def _milliseconds(record: StoredRecord) -> float | None:
    """Median time in milliseconds; None if the results are wrong or the time is unknown."""
    measured = record.verdict is Verdict.SUCCESS and record.measurement is not None
    return record.measurement.median_ms if measured and record.measurement is not None else None


def _not_compiled(like: StoredRecord, name: str, reason: str) -> StoredRecord:
    return replace(
        like,
        configuration=name,
        verdict=Verdict.NOT_COMPILED,
        reason=reason,
        measurement=None,
        confirmed=None,
    )


def kept_entry(entry: Entry, finalist: Finalist) -> Entry:
    """`entry` with the speeds and the origin of its fresh records. It must have been compared."""
    tuned, speedup = finalist.tuned, finalist.speedup
    assert tuned is not None and tuned.measurement is not None and speedup is not None
    gflops = measured_gflops(tuned.measurement, entry.operation.flops)
    return Entry(entry.dispatch, gflops, speedup, tuned.provenance)


# -- runners up ------------------------------------------------------------------------------------

#     search -> finalists with indistinguishable times -> paired sampling -> the order to benchmark them in
#
# Only the order is decided here. The speedup of the kept finalist comes from fresh samples (`benchmarked`),
# because the samples here favour the luckiest, too.


#: The largest number of tuned finalists of a problem.
MOST = 3
#: The time limit of a comparison of finalists until its first result.
_MOST_SECONDS = 20.0
#: A finalist's time in quiet moments is at most this many times the best one's.
_CLOSE = 1.1
#: The time limit afterwards: a part of the search's time, and at least and at most these seconds. The order alone matters,
#: so this is less than for a speedup.
_RANKING_PART, _LEAST_RANKING_SECONDS, _MOST_RANKING_SECONDS = 1.0 / 32.0, 1.0, 5.0


def contenders(problem: TuningProblem, result: OperationResult, target: Target) -> tuple[Contender, ...]:
    """The candidates to replace the compiler's default, in the order to benchmark them; may be empty.

    The fastest tuned configuration, and up to two others that may be faster than it by 2 % or more, as far as the samples
    of the search say. Then the fastest known form, if it is the fastest untuned configuration. No tuned one if the fastest
    is not 2 % faster than an untuned configuration: the fastest of many candidates is also the luckiest, so that measuring
    it again would hardly change the choice.
    """
    if result.best is None:
        return ()
    untuned = baselines(result.operation, target)
    rival = untuned_rival(result.operation, result.evaluations, target)
    tuned = _tuned(result.evaluations, untuned) if rival is None else []
    close = [each for each in tuned if each is tuned[0] or _may_be_faster(each, tuned[0])]
    form = untuned_best(result, target)
    forms = [form] if form is not None and not isinstance(form.configuration, Default) else []
    seconds = sum(each.seconds for each in result.evaluations)
    return tuple(
        Contender(problem, entry_of(each, result, target), result.evaluations, seconds)
        for each in [*close[:MOST], *forms]
    )


def untuned_rival(
    operation: Operation, evaluations: Sequence[Evaluation], target: Target
) -> Evaluation | None:
    """The fastest untuned configuration, if no tuned one was faster than it by 2 % in the search; else None."""
    untuned = baselines(operation, target)
    tuned = _tuned(evaluations, untuned)
    if tuned:
        untuned = _untuned_beside(tuned[0].dispatch, target)
    timed = [each for each in evaluations if each.configuration in untuned and each.milliseconds]
    rival = min(timed, key=_time, default=None)
    if rival is None or not tuned or _time(rival) < (1.0 + _MARGIN) * _time(tuned[0]):
        return rival
    return None


def _tuned(evaluations: Iterable[Evaluation], untuned: Sequence[Configuration]) -> list[Evaluation]:
    """What was verified and measured to the end and is not among `untuned`, the fastest first."""
    tuned = (each for each in evaluations if _is_complete(each) and each.configuration not in untuned)
    return sorted(tuned, key=_time)


def _time(evaluation: Evaluation) -> float:
    return evaluation.milliseconds or 0.0


def _is_complete(evaluation: Evaluation) -> bool:
    """Whether it was verified and measured to the end, and is a kernel of its own."""
    is_measured = evaluation.milliseconds is not None and not evaluation.was_abandoned
    return is_measured and not evaluation.same_kernel_as


def _may_be_faster(evaluation: Evaluation, best: Evaluation) -> bool:
    """Whether its fastest sample is faster by `_MARGIN` than the time of the best in quiet moments, and its own is close."""
    measurement = evaluation.record.measurement
    assert measurement is not None  # it has a time
    fastest = (1.0 + _MARGIN) * min(measurement.samples_ms)
    return fastest <= _time(best) and _time(evaluation) <= _CLOSE * _time(best)


@dataclass(frozen=True)
class Ranked:
    """The contenders of a problem, in the order to benchmark them, and a judgement of each that another one beat.

    `compared` counts the finalists that were measured beside each other, 0 if there was no choice.
    """

    contenders: tuple[Contender, ...]
    beaten: tuple[Judged, ...] = ()
    compared: int = 0


def ranked(fields: Sequence[tuple[Contender, ...]], bench: Bench) -> Iterator[Ranked]:
    """Each of `fields`, the contenders of a problem, by their speed beside each other.

    Raises TargetError if the device does not open.
    """
    target = bench.benchmark.target
    tuned = [[each for each in field if not each.is_untuned(target)] for field in fields]
    several = [each for group in tuned if len(group) > 1 for each in group]
    if not several:
        yield from map(Ranked, fields)
        return
    bench.start()
    dispatches = [each.entry.dispatch for each in several]
    evaluated = [each.evaluation for each in several if each.evaluation is not None]
    built = dict(zip(dispatches, bench.candidates(dispatches, evaluated), strict=True))
    for field, group in zip(fields, tuned, strict=True):
        if len(group) < 2:
            yield Ranked(field)
            continue
        first, *others = (built[each.entry.dispatch] for each in group)
        limit = PairLimit(group[0].ranking_seconds, _MOST_SECONDS)
        test = SequentialTestOptions(threshold=_MARGIN, least_gain=_MARGIN)
        compared = bench.comparison.compared([(first, each) for each in others], limit, test)
        order = by_speed(group, [confirmation_of(each) for each in compared])
        forms = [each for each in field if each not in group]
        yield replace(order, contenders=(*order.contenders, *forms))


def by_speed(group: Sequence[Contender], beside: Sequence[Confirmation]) -> Ranked:
    """The order of `group`, whose others were measured beside its first: `beside` has their speeds relative to it.

    A contender that failed beside it comes last. Equally fast contenders keep the order of `group`.
    """
    speeds = [Estimate(1.0, 1.0, 1.0), *map(confirmed_speedup, beside)]
    values = [0.0 if each is None else each.value for each in speeds]
    order = sorted(range(len(group)), key=lambda at: -values[at])
    name = group[order[0]].entry.dispatch.configuration.name
    beaten = []
    for at in order[1:]:
        speed, other = speeds[at], speeds[order[0]]
        if speed is None or other is None:
            outcome = Judgement.NOT_COMPARED
            reason = (
                f"it has no time beside {group[0].entry.dispatch.configuration.name}: {beside[at - 1].reason}"
            )
        else:
            outcome = Judgement.RUNNER_UP
            reason = f"{name} is {_text(other, speed)} times as fast beside it"
        beaten.append(Judged(Finalist(group[at].problem, None, group[at].untimed), outcome, reason))
    return Ranked(tuple(group[at] for at in order), tuple(beaten), len(group))


def _text(one: Estimate, other: Estimate) -> str:
    """How much faster `one` is: `1.031 (1.012 to 1.048)`. The interval is known if one of them is the reference."""
    ratio = f"{one.value / other.value:.3f}"
    ends = (one.low / other.high, one.high / other.low if other.low else math.inf)
    is_direct = 1.0 in (one.low, other.low) and 1.0 in (one.high, other.high)
    return f"{ratio} ({ends[0]:.3f} to {ends[1]:.3f})" if is_direct and math.isfinite(ends[1]) else ratio
