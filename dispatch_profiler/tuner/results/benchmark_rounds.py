"""The benchmark of finalists, in rounds: if the first one of a problem turns out to be wrong, the next one is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.library import Entry, KeepRule, Library
from dispatch_profiler.tuner.results.finalists import Benchmark, Contender, benchmarked, kept_entry
from dispatch_profiler.tuner.results.results import line_of
from dispatch_profiler.tuner.results.runners_up import Ranked
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement, judge

#: Judgements after which the other tuned finalists are not measured, because they are no faster.
_OF_SPEED = (Judgement.SLOWER, Judgement.INTERVAL_OVERLAPS, Judgement.BELOW_THRESHOLD)


class BenchmarkRounds:
    """Benchmarks the contenders of each problem in their order until one is kept or none is left.

    `fields` has the contenders by the name of the problem. `say` is called with a line for each judgement.
    """

    def __init__(
        self, fields: Mapping[str, Ranked], benchmark: Benchmark, rule: KeepRule, say: Callable[[str], None]
    ) -> None:
        self._fields = fields
        self._benchmark = benchmark
        self._rule = rule
        self._say = say
        self._waiting = {name: list(field.contenders) for name, field in fields.items()}
        self._found: dict[str, list[tuple[Contender, Judged]]] = {name: [] for name in fields}
        #: The entries of the final library, by the names of their problems.
        self.kept: dict[str, Entry] = {}

    def first_winners(self) -> Library:
        """The library of the entries that are measured in the first round."""
        return Library(field.contenders[0].entry for field in self._fields.values())

    def run(self, winners: Path, folder: Path) -> None:
        """Measure everything, compiled from the library in the folder `winners`. `folder` is for trees.

        Raises TargetError if the device does not open.
        """
        entries: dict[str, Entry] = {}
        number = 0
        while turn := {name: waiting.pop(0) for name, waiting in self._waiting.items() if waiting}:
            number += 1
            entries |= {name: each.entry for name, each in turn.items()}
            Library(entries.values()).save(winners)
            library = Library.load(winners)
            for finalist in benchmarked(
                list(turn.values()), library, self._benchmark, folder / f"round_{number}"
            ):
                self._take(turn[finalist.problem.name], finalist)

    def _take(self, contender: Contender, finalist: Finalist) -> None:
        """Judge a finalist, and decide whether others of its problem are measured."""
        name, judged = finalist.problem.name, judge(finalist, self._rule)
        self._say(f"[Benchmark]: {line_of(judged)}")
        self._found[name].append((contender, judged))
        if judged.is_kept:
            self.kept[name] = kept_entry(contender.entry, finalist)
            self._waiting[name] = []
        elif judged.judgement in _OF_SPEED:
            self._waiting[name] = [each for each in self._waiting[name] if self._is_untuned(each)]

    def _is_untuned(self, contender: Contender) -> bool:
        return contender.is_untuned(self._benchmark.target)

    def judged(self, name: str) -> Judged | None:
        """The judgement of a problem, with its other finalists; None if it has no contender."""
        if name not in self._fields:
            return None
        tried = self._found[name]
        tuned = [judged for contender, judged in tried if not self._is_untuned(contender)]
        form = next((judged for contender, judged in tried if self._is_untuned(contender)), None)
        if not tuned:
            assert form is not None  # every problem here has a contender
            return _of_untuned(form)
        first = next((each for each in tuned if each.is_kept), tuned[0])
        reason = first.reason
        if form is not None and form.is_kept:
            reason += f"; {_name(form)}, the fastest known form, is in the library: it is faster than the compiler's default"
        measured = {_name(each) for each in tuned}
        beaten = [each for each in self._fields[name].beaten if _name(each) not in measured]
        others = [each for each in tuned if each is not first]
        return replace(first, reason=reason, others=(*others, *beaten))


def _name(judged: Judged) -> str:
    tuned = judged.finalist.tuned
    return "" if tuned is None else tuned.configuration


def _of_untuned(judged: Judged) -> Judged:
    """The judgement of a problem whose fastest form needed no tuning: it is no uplift, even if the library contains it."""
    finalist = judged.finalist
    reason = f"no configuration was faster than {_name(judged) or 'the fastest known form'} in the search"
    if judged.is_kept:
        reason += ", which is in the library because it is faster than the compiler's default"
    return Judged(Finalist(finalist.problem, finalist.tuned), Judgement.NO_FINALIST, reason)
