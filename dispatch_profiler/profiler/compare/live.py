"""`compare --live`: compares the dispatches of two trees, each pair by paired sampling in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.closing import Closing
from dispatch_profiler.dispatches import Manifest, Tree
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import DEFAULT_SEED, Distribution
from dispatch_profiler.profiler.compare.pairing import By, Pair
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Candidate, TreeCandidates
from dispatch_profiler.profiler.evaluation.workers import memory_limit, provide, ref_of
from dispatch_profiler.profiler.measurement.measure import differences, included
from dispatch_profiler.profiler.measurement.paired_sampling import PairedSamples, PairLimit
from dispatch_profiler.profiler.providers.library_calls import ManifestPair
from dispatch_profiler.profiler.records.record import PROVIDER, Confirmation, StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default, median_ms, packs_weight
from dispatch_profiler.profiler.statistics.comparison import Outcome, SequentialTestOptions, Side
from dispatch_profiler.profiler.verification.verify import Expected, Result, VerifiedHashes
from dispatch_profiler.targets import parse_target


@dataclass(frozen=True)
class LiveOptions:
    """`seconds` is the time limit of a pair; a pair that exceeds it by `limit_seconds` counts as hung.

    `references` is a folder with a cache of expected results.
    """

    device: str
    sequential_test: SequentialTestOptions = SequentialTestOptions()
    seconds: float = 30.0
    limit_seconds: float = 120.0
    seed: int = DEFAULT_SEED
    references: Path | None = None


def match(
    base: Iterable[ManifestPair], new: Iterable[ManifestPair], by: By
) -> list[tuple[ManifestPair, ManifestPair]]:
    """Pairs of dispatches that are in both, in the order of `new`.

    Raises UsageError without pairs, or if several dispatches of one side have the same key.
    """
    sides = [_keyed(side, name, by) for side, name in ((base, "base"), (new, "new"))]
    pairs = [(sides[0][key], entry) for key, entry in sides[1].items() if key in sides[0]]
    if not pairs:
        hint = "compare one configuration with another by --by=operation" if by is By.DISPATCH else ""
        raise UsageError(f"no {by.value} is in both base and new", hint=hint)
    return pairs


def _keyed(entries: Iterable[ManifestPair], side: str, by: By) -> dict[str, ManifestPair]:
    keyed: dict[str, ManifestPair] = {}
    for entry, dispatch in entries:
        key = dispatch.dispatch.name if by is By.DISPATCH else entry.operation.name
        if key in keyed:
            raise UsageError(
                f"{side} has more than one configuration of {key}",
                hint="choose one per side with --base-dispatches=PATTERN and --new-dispatches=PATTERN",
            )
        keyed[key] = entry, dispatch
    return keyed


class CandidateComparison(Closing):
    """Compares candidates. One worker process owns the device and runs the kernels; another checks the results.

    Results in `hashes` are not checked again.
    """

    def __init__(self, options: LiveOptions, hashes: VerifiedHashes | None = None) -> None:
        self._options = options
        self._hashes = hashes or VerifiedHashes()
        limits = WorkerLimits(options.limit_seconds + options.seconds, memory_limit(options.device))
        self._worker = Worker(limits, device_worker.start, (options.device, ""))
        self._checker = Worker(
            limits,
            device_worker.start_checker,
            (str(options.references or ""), options.seed, options.device),
            device_worker.CHECKER_ENVIRONMENT,
        )

    def prepare(self) -> None:
        """Start the processes ahead, such as while candidates are compiled. An error is reported when they are needed."""
        for worker in (self._worker, self._checker):
            with contextlib.suppress(DispatchProfilerError):
                worker.call(device_worker.ready)

    def compared(
        self,
        matched: Iterable[tuple[Candidate, Candidate]],
        limit: PairLimit | None = None,
        test: SequentialTestOptions | None = None,
    ) -> Iterator[Pair]:
        """Yield the outcome of each (base, new) as it finishes. Raises TargetError if the device does not open.

        `limit` replaces the time limit of the options, which is its maximum, and `test` replaces their test.
        """
        self._worker.call(device_worker.ready)
        limit, test = limit or PairLimit(self._options.seconds), test or self._options.sequential_test
        for base, new in matched:
            yield self._pair({Side.BASE: base, Side.NEW: new}, limit, test)

    def _pair(self, sides: dict[Side, Candidate], limit: PairLimit, test: SequentialTestOptions) -> Pair:
        operation = sides[Side.NEW].dispatch.operation
        one, other = (sides[side].dispatch.configuration.name for side in (Side.BASE, Side.NEW))
        configuration = one if one == other else f"{one} -> {other}"
        label = f"{operation.name}_{configuration}"

        def pair(outcome: Outcome, reason: str) -> Pair:
            return Pair(label, operation.name, configuration, PROVIDER, outcome, reason)

        try:
            modules, expected, vmfbs = {}, {}, []
            for side, candidate in sides.items():
                dispatch = candidate.dispatch
                if candidate.profile is None:
                    return pair(_failed(side), f"{side.value}: {candidate.reason or candidate.state.value}")
                modules[side] = ref_of(candidate.profile, candidate.repeat), dispatch.name
                bound = dispatch.error_bound_on(parse_target(candidate.target))
                expected[side] = Expected(
                    operation, Distribution.REALS, error_bound=bound, seed=self._options.seed
                )
                vmfbs.append(candidate.profile)
            provide(self._worker, vmfbs)
            options = self._options
            known = {side: self._hashes.of(each) for side, each in expected.items()}
            taken: PairedSamples
            results: dict[Side, Result]
            taken, results = self._worker.call(
                device_worker.sample_pairs, modules, operation, options.seed, test, limit, known
            )
            for side, result in results.items():
                if wrong := self._wrong(expected[side], result):
                    return pair(_failed(side), f"{side.value}: {wrong}")
        except DispatchProfilerError as error:
            return pair(Outcome.NOT_MEASURED, error.message)
        tested = taken.result
        return Pair(
            label, operation.name, configuration, PROVIDER, tested.outcome,
            "; ".join([tested.reason, *_measured_differently(sides)]), tested.ratio,
            taken.medians_ms.get(Side.BASE), taken.medians_ms.get(Side.NEW),
        )  # fmt: skip

    def _wrong(self, expected: Expected, result: Result) -> str:
        """Why a result is wrong; empty if it is correct. Raises ShapeMismatch and ToolError."""
        if result.arrays is None:
            return ""
        comparison = self._checker.call(device_worker.check, expected, result.arrays)
        if comparison.passed:
            self._hashes.add(expected, result.digest)
            return ""
        return f"FAILED ({comparison.message})"

    def close(self) -> None:
        self._worker.close()
        self._checker.close()


class LiveComparison(CandidateComparison):
    """Compares dispatches of two trees. The cache of expected results is by default in the tree of `base`."""

    def __init__(self, base: Tree, new: Tree, options: LiveOptions) -> None:
        super().__init__(replace(options, references=options.references or base.references))
        self._base, self._new = TreeCandidates(base), TreeCandidates(new)

    def pairs(self, matched: Iterable[tuple[ManifestPair, ManifestPair]]) -> Iterator[Pair]:
        """See `compared`."""
        both = ((self._base.candidate(*base), self._new.candidate(*new)) for base, new in matched)
        return self.compared(both)


def _measured_differently(sides: dict[Side, Candidate]) -> list[str]:
    """Work that only one side's times include: converting the weight, unless it is packed at load time."""
    base, new = (sides[side].dispatch.configuration.packs_weight for side in (Side.BASE, Side.NEW))
    different = differences(*(included(weights=not packs, call=True) for packs in (base, new)))
    return [f"measured differently: {', '.join(different)}"] if different else []


def _failed(side: Side) -> Outcome:
    return Outcome.FAILED if side is Side.NEW else Outcome.NOT_MEASURED


# -- confirm ---------------------------------------------------------------------------------------

# `profile --confirm`: compares the best configurations with the default, by paired sampling.
#
# During a run, the two are measured minutes apart. Paired sampling measures them together, so that a
# disturbance affects both.


def winners(records: Iterable[StoredRecord], known: Iterable[str]) -> list[tuple[StoredRecord, StoredRecord]]:
    """The default and the best record of each operation on each device, unless the default is best.

    A packed weight does not count, because its time includes less. `known` has the names of the dispatches that can be measured again, which excludes libraries.
    """
    names = set(known)
    groups: dict[tuple[str, str], list[StoredRecord]] = {}
    for record in records:
        if record.dispatch in names and median_ms(record) is not None and not packs_weight(record):
            groups.setdefault((record.operation, record.provenance.device), []).append(record)
    pairs = []
    for group in groups.values():
        default = next((record for record in reversed(group) if is_default(record)), None)
        best = min(group, key=lambda record: median_ms(record) or 0.0)
        if default is not None and not is_default(best):
            pairs.append((default, best))
    return pairs


def confirmations(
    manifest: Manifest, records: Iterable[StoredRecord], options: LiveOptions
) -> Iterator[tuple[StoredRecord, Confirmation]]:
    """The best record of each operation on each device, with the result of paired sampling.

    `options` apply to every device. Raises TargetError if a device cannot be opened.
    """
    pairs: dict[str, ManifestPair] = {pair[1].dispatch.name: pair for pair in manifest.dispatches()}
    by_device: dict[str, list[tuple[StoredRecord, StoredRecord]]] = {}
    for default, best in winners(records, pairs):
        by_device.setdefault(best.provenance.device, []).append((default, best))
    for device, winners_there in by_device.items():
        with LiveComparison(manifest.tree, manifest.tree, replace(options, device=device)) as live:
            matched = [(pairs[default.dispatch], pairs[best.dispatch]) for default, best in winners_there]
            for (_, best), pair in zip(winners_there, live.pairs(matched), strict=True):
                yield best, confirmation_of(pair)


def confirmation_of(pair: Pair) -> Confirmation:
    """A pair's ratio of times, new over base, as the speed of new."""
    if pair.ratio is None:
        return Confirmation(pair.outcome.value, pair.reason)
    value, low, high = pair.ratio.value, pair.ratio.low, pair.ratio.high
    # An unknown end is 0 or infinite.
    return Confirmation(
        pair.outcome.value, pair.reason, 1.0 / value, 1.0 / high, 1.0 / low if low > 0.0 else None
    )
