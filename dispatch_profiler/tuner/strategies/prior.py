"""A prior: the speed of a configuration, predicted from recorded sweeps of other operations.

A forest of randomized trees is trained on the features of every recorded configuration and the logarithm of
its time, divided by the shortest of its sweep. Every sweep has the same weight, and a recorded search counts as one.
The forests in `priors/` ship with the package, one for each code generator; `scripts/train_priors.py` makes them from
`benchmarks/sweeps` and `benchmarks/searches`. They are arrays, so that their use requires nothing but numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.tuner.packages import import_ensembles
from dispatch_profiler.tuner.spaces.features import FEATURES
from dispatch_profiler.tuner.strategies.sweeps import RecordedSweep

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
