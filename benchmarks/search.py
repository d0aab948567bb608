"""Regret of every search strategy on recorded sweeps, without a device.

    python benchmarks/search.py [--quick] [--json PATH]

A sweep has the time of every configuration of a reduced space of one operation, measured on two cores (see
benchmarks/sweeps). Every strategy is replayed on it from the same start, the compiler's default and the
fastest untuned form, in rounds of 8 evaluations. Its regret after n evaluations is how much slower the fastest
of them is than the fastest of the sweep. These first configurations count as evaluations, for every strategy.

The prior is trained on the sweeps and searches (benchmarks/searches) of other operations alone, anew for each
operation and seed. Operations that differ in their epilogues alone count as one. Constants of its model are the same
for every operation.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _table import Row, at_most, exit_with, make_parser, report
from joblib import Parallel, delayed

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.operations import Epilogue, Operation
from dispatch_profiler.targets import fastest_form
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY, STRATEGIES, Strategy, Trial
from dispatch_profiler.tuner.strategies.learned import Learned
from dispatch_profiler.tuner.strategies.prior import Prior, RecordedSweep, read_sweep, train_each

SWEEPS = Path(__file__).resolve().parent / "sweeps"
#: Times of the configurations that searches evaluated, which the prior learns from too.
SEARCHES = Path(__file__).resolve().parent / "searches"
#: Evaluations after which regret is taken, with the goal in percent.
GOALS = {16: 4.0, 64: 2.0}
#: As in `tuner.search`: what is compiled before it is measured.
ROUND = 8
#: Exploring ends here where a strategy is followed by a descent.
DESCENT = 48
SEEDS, QUICK_SEEDS = 20, 3
#: The other strategies have at most this many: a replay of TPE takes 6 s.
OTHER_SEEDS = 5
#: The strategy that is judged, and the one that it is compared with.
JUDGED = (DEFAULT_STRATEGY, "random")
Maker = Callable[[SearchSpace, int, Sequence[Configuration]], Strategy]


@dataclass(frozen=True)
class Replay:
    """Regrets in percent of one strategy on one operation: evaluations -> the regret with each seed."""

    strategy: str
    operation: str
    regrets: dict[int, list[float]]


def makers(priors: Sequence[Prior]) -> dict[str, Maker]:
    """How each strategy is made, by the name of its row."""
    names = [name for name in STRATEGIES if name not in ("exhaustive", "prior")]
    return {
        **{name: STRATEGIES[name] for name in names},
        "prior": lambda space, seed, seeds: Learned(space, seed, seeds, prior=priors[seed]),
        f"prior, descent after {DESCENT}": lambda space, seed, seeds: Learned(
            space, seed, seeds, DESCENT, priors[seed]
        ),
    }


def regrets(strategy: Strategy, sweep: RecordedSweep, first: int) -> dict[int, float]:
    """Replay until the last of `GOALS`. The first round has `first` evaluations."""
    best, found, asked = float("inf"), {}, 0
    while asked < max(GOALS):
        batch = strategy.ask(min(ROUND if asked else first, max(GOALS) - asked))
        for configuration in batch:
            best = min(best, sweep.times[configuration] or best)
            asked += 1
            if asked in GOALS:
                found[asked] = 100 * (best / sweep.best - 1)
        strategy.tell([Trial(each, sweep.times[each]) for each in batch])
        if not batch:
            break
    return {count: found.get(count, 100 * (best / sweep.best - 1)) for count in GOALS}


def replays(path: Path, recorded: Sequence[Path], seeds: int) -> list[Replay]:
    """Every strategy on the sweep of `path`, with a prior of the other operations in `recorded`."""
    sweep = read_sweep(path)
    every = map(read_sweep, recorded)
    others = [each for each in every if plain(each.operation) != plain(sweep.operation)]
    priors = train_each(others, range(seeds))
    space = sweep.search_space()
    form = fastest_form(sweep.operation, sweep.target)
    first = [Default(), *([form] if form else [])]
    found = []
    for name, make in makers(priors).items():
        count = seeds if name in JUDGED else min(seeds, OTHER_SEEDS)
        each = [regrets(make(space, seed, first), sweep, len(first)) for seed in range(count)]
        of = {goal: [one[goal] for one in each] for goal in GOALS}
        found.append(Replay(name, sweep.operation.name, of))
    return found


def plain(operation: Operation) -> Operation:
    """The operation without its epilogue."""
    return replace(operation, epilogue=Epilogue()) if operation.contraction else operation  # type: ignore[type-var]


def table(found: Sequence[Replay]) -> list[str]:
    """Regret for each operation and strategy, as text."""
    lines = [f"{'operation':<44} {'strategy':<26} " + " ".join(f"{f'after {n}':>9}" for n in GOALS)]
    for each in sorted(found, key=lambda each: each.operation):
        means = (statistics.fmean(each.regrets[count]) for count in GOALS)
        lines.append(
            f"{each.operation[:44]:<44} {each.strategy:<26} " + " ".join(f"{mean:>8.1f}%" for mean in means)
        )
    return lines


def mean_regret(found: Sequence[Replay], strategy: str, count: int) -> tuple[float, float]:
    """The mean over operations, and its standard error over seeds."""
    each = [replay.regrets[count] for replay in found if replay.strategy == strategy]
    of_seeds = [statistics.fmean(values) for values in zip(*each, strict=True)]
    return statistics.fmean(of_seeds), statistics.stdev(of_seeds) / len(of_seeds) ** 0.5


def summary(found: Sequence[Replay]) -> list[Row]:
    """The mean of each strategy; goals for the default one, which is also compared with random search."""
    rows = []
    for name in dict.fromkeys(each.strategy for each in found):
        for count, goal in GOALS.items():
            mean, error = mean_regret(found, name, count)
            label = f"{name}: mean regret after {count} (standard error {error:.1f})"
            is_judged = name == DEFAULT_STRATEGY
            rows.append(at_most(label, mean, "%", goal) if is_judged else Row(label, mean, "%", "any", True))
    for count in GOALS:
        share = mean_regret(found, DEFAULT_STRATEGY, count)[0] / mean_regret(found, "random", count)[0]
        rows.append(at_most(f"{DEFAULT_STRATEGY} against random after {count}", share, "of its regret", 0.5))
    return rows


def main() -> int:
    """Replay and print; the exit status is 1 if a goal was missed."""
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--replayed", type=Path, default=SWEEPS, metavar="DIR",
        help="sweeps to search, such as benchmarks/held_out; priors learn from benchmarks/sweeps in any case",
    )  # fmt: skip
    options = parser.parse_args()
    paths = sorted(options.replayed.glob("*.jsonl.gz"))
    if not paths:
        parser.error(f"{options.replayed} has no sweep, a file OPERATION.jsonl.gz")
    seeds = QUICK_SEEDS if options.quick else SEEDS
    recorded = [*sorted(SWEEPS.glob("*.jsonl.gz")), *sorted(SEARCHES.glob("*.jsonl.gz"))]
    each = Parallel(n_jobs=-1)(delayed(replays)(path, recorded, seeds) for path in paths)
    found = [replay for some in each for replay in some]
    print("\n".join(table(found)))
    return report(summary(found), options.json)


if __name__ == "__main__":
    exit_with(main)
