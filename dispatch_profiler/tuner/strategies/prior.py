"""A prior: the speed of a configuration, predicted from recorded sweeps of other operations.

A forest of randomized trees is trained on the features of every recorded configuration and the logarithm of
its time, divided by the shortest of its sweep. Every sweep has the same weight, and a recorded search counts as one.
The forests in `priors/` ship with the package, one for each code generator; `scripts/train_priors.py` makes them from
`benchmarks/sweeps` and `benchmarks/searches`. They are arrays, so that their use requires nothing but numpy.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.configurations import Configuration, Space, configuration_from_dict, spaces
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text, whole
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.packages import import_ensembles
from dispatch_profiler.tuner.spaces.space import FEATURES, SearchSpace

_TREES, _LEAF = 60, 5
#: Logarithms of multiples of the shortest time count half above this multiple: differences among slow configurations
#: say what makes a kernel fast, but matter less than differences among fast configurations.
_FAST = 2.0
#: Longer multiples, and failures, count as this one.
_LONGEST = 64.0


@dataclass(frozen=True)
class Prior:
    """A forest. Node i sends rows with `feature[i]` up to `threshold[i]` to node i + 1, others to `right[i]`.

    At a leaf, `feature` is -1, and `threshold` is the predicted value. `roots` are the first nodes of trees.
    """

    names: np.ndarray
    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    right: np.ndarray

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Logarithms of times up to a constant, for rows of `SearchSpace.vectors`; lower is faster.

        Columns are found by their names: features that were added after the training are ignored.
        """
        rows = np.arange(len(vectors))[:, None]
        nodes = np.broadcast_to(self.roots, (len(vectors), len(self.roots)))
        values = vectors[:, [FEATURES.index(name) for name in self.names]].astype(np.float32)
        while True:
            feature = self.feature[nodes]
            is_leaf = feature < 0
            if is_leaf.all():
                return self.threshold[nodes].mean(1, dtype=np.float64)
            is_left = values[rows, feature] <= self.threshold[nodes]
            nodes = np.where(is_leaf, nodes, np.where(is_left, nodes + 1, self.right[nodes]))

    def save(self, path: Path) -> None:
        """Write a file of numpy arrays."""
        np.savez_compressed(path, **asdict(self))


def train(sweeps: Sequence[RecordedSweep], seed: int = 0) -> Prior:
    """The prior of `sweeps`. Raises MissingDependency without scikit-learn."""
    return train_each(sweeps, [seed])[0]


def train_each(sweeps: Sequence[RecordedSweep], seeds: Iterable[int]) -> list[Prior]:
    """The prior of `sweeps` with each of `seeds`. Raises MissingDependency without scikit-learn."""
    ensembles = import_ensembles()
    vectors, targets, weights = map(np.concatenate, zip(*map(_samples, sweeps), strict=True))
    priors = []
    for seed in seeds:
        forest = ensembles.ExtraTreesRegressor(
            _TREES, min_samples_leaf=_LEAF, max_features=0.5, random_state=seed
        )
        forest.fit(vectors, targets, sample_weight=weights)
        priors.append(_as_prior(forest))
    return priors


def _as_prior(forest: Any) -> Prior:
    trees = [_in_preorder(tree.tree_) for tree in forest.estimators_]
    roots = np.cumsum([0, *(len(feature) for feature, _, _ in trees[:-1])])
    return Prior(
        np.array(list(FEATURES)),
        roots.astype(np.int32),
        np.concatenate([feature for feature, _, _ in trees]).astype(np.int16),
        np.concatenate([threshold for _, threshold, _ in trees]).astype(np.float32),
        np.concatenate([right + root for (_, _, right), root in zip(trees, roots, strict=True)]).astype(
            np.int32
        ),
    )


@cache
def shipped_prior(backend: str) -> Prior | None:
    """The prior for a target's code generator that ships with this package; None if the package has no such prior."""
    file = resources.files("dispatch_profiler.tuner.strategies") / "priors" / f"{backend}.npz"
    if not file.is_file():
        return None
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return Prior(**arrays)


def _samples(sweep: RecordedSweep) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    vectors = sweep.search_space().vectors(sweep.times)[:, : len(FEATURES)]
    multiples = np.array([(time or np.inf) / sweep.best for time in sweep.times.values()])
    return vectors, _targets(multiples), np.full(len(multiples), 1 / len(multiples))


def _targets(multiples: np.ndarray) -> np.ndarray:
    """The values that the forest is trained to predict, for times that are `multiples` of the shortest."""
    logarithms = np.log(np.minimum(multiples, _LONGEST))
    return np.minimum(logarithms, (logarithms + math.log(_FAST)) / 2)


def _in_preorder(tree: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, thresholds or values, and right children of a tree of scikit-learn, each left child after its parent."""
    left, right = tree.children_left, tree.children_right
    order: list[int] = []
    stack = [0]
    while stack:
        node = stack.pop()
        order.append(node)
        if left[node] >= 0:
            stack += [right[node], left[node]]
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    is_leaf = left < 0
    feature = np.where(is_leaf, -1, tree.feature)
    threshold = np.where(is_leaf, tree.value[:, 0, 0], tree.threshold)
    children = np.where(is_leaf, 0, place[right])
    return feature[order], threshold[order], children[order]


# -- sweeps ----------------------------------------------------------------------------------------

# Recorded sweeps: the times of every configuration of a reduced space, for replays and for a prior.
#
# A file has JSON lines, compressed if its name ends in `.gz`. The first line describes the operation:
#
#     {"operation": {...}, "name": "matmul_...", "target": "llvm-cpu", "cores": 16,
#      "spaces": [{"of": "cpu_tiles", "axes": {"distribution_m": [32, 64], ...}}, ...]}
#
# Each further line is the outcome of one configuration, with `ms` null if it failed:
#
#     {"configuration": {...}, "verdict": "Passed", "ms": 0.41, "interval": [0.40, 0.42], "reason": ""}
#
# The evaluations of a search can be recorded too, without `spaces`: such a file trains a prior, but cannot be replayed.
# `scripts/record_sweep.py` records sweeps.


@dataclass(frozen=True)
class RecordedSweep:
    """Times in milliseconds of configurations of `operation`, in the order of the file; None if one failed."""

    operation: Operation
    target: Target
    cores: int
    #: The reduced spaces that were swept.
    spaces: tuple[Space[Configuration], ...]
    times: Mapping[Configuration, float | None]

    @cached_property
    def best(self) -> float:
        """The shortest time."""
        return min(time for time in self.times.values() if time is not None)

    def search_space(self) -> SearchSpace:
        """The space in which only recorded configurations are valid."""
        return SearchSpace(self.operation, self.target.limits, self.spaces, self.times, self.cores)


def read_sweep(path: Path) -> RecordedSweep:
    """Read one file. Raises UsageError, which names the file and the line."""
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        head, *outcomes = (mapping(parse_json(line)) for line in lines)
        operation = operation_from_dict(mapping(head.get("operation"), "operation"))
        target = parse_target(text(head, "target"))
        times = {}
        for number, outcome in enumerate(outcomes, 2):  # noqa: B007 - for the message
            configuration = configuration_from_dict(mapping(outcome.get("configuration"), "configuration"))
            times[configuration] = _milliseconds(outcome.get("ms"))
        if not any(times.values()):
            raise FieldError("no configuration has a time")
        reduced = _reduced(spaces(operation, target.limits), rows(head, "spaces"))
        return RecordedSweep(operation, target, whole(head, "cores", least=1), reduced, times)
    except (OSError, EOFError, ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(f"{path}, line {number or 1}: {error}", hint="record the sweep again") from error


def _milliseconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and 0 < value < float("inf"):
        return float(value)
    raise FieldError(f"ms: expected a positive number or null, but got {value!r}")


def _reduced(
    among: Sequence[Space[Configuration]], recorded: Sequence[Mapping[str, Any]]
) -> tuple[Space[Configuration], ...]:
    """The spaces of `among` that were swept, with the choices of the recorded axes."""
    reduced = []
    left = list(among)
    for each in recorded:
        axes = mapping(each.get("axes"), "axes")
        space = next(
            (s for s in left if space_label(s) == each.get("of") and {a.name for a in s.axes} == set(axes)),
            None,
        )
        if space is None:
            continue  # A form or a kind that no longer exists.
        left.remove(space)
        for name, choices in axes.items():
            space = space.with_choices(name, *choices)
        reduced.append(space)
    return tuple(reduced)


def space_label(space: Space[Configuration]) -> str:
    """The form of a space's configurations, or else their kind."""
    configuration = space.to_configuration(tuple(axis.choices[0] for axis in space.axes))
    return str(getattr(configuration, "form", configuration.kind))
