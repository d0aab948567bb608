"""A prior from recorded sweeps of other operations, corrected by what the trials show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies._model import Fixed, ModelStrategy, Ranking
from dispatch_profiler.tuner.strategies.gaussian import Posterior, Process
from dispatch_profiler.tuner.strategies.prior import Prior, shipped_prior

#: Trials before the first proposals without a prior.
_INITIAL = 6


class Learned(ModelStrategy):
    """Expected improvement of a Gaussian process whose mean is a prior's prediction.

    `prior` replaces the shipped prior of the target's backend. Without either, the mean is constant. The
    default strategy: its mean regret on recorded sweeps is 2.9 % after 16 evaluations and 0.8 % after 64,
    compared with 20 % and 7 % for random search (benchmarks/search.py, docs/tuning.md).
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._prior = prior or shipped_prior(space.limits.backend)
        super().__init__(space, seed, seeds, descend_after)

    def _is_fitted(self) -> bool:
        return self._prior is not None or len(self._outcomes) >= _INITIAL

    def _predict(self, vectors: np.ndarray) -> np.ndarray:
        return super()._predict(vectors) if self._prior is None else self._prior.predict(vectors)

    def _ranking(self, rows: np.ndarray, times: np.ndarray) -> Ranking:
        means = self._pool.means
        if not len(rows):
            return Fixed(-means)
        return Posterior(Process(self._pool.vectors, self._pool.families, means), rows, times)
