"""The speed of a configuration before anything is measured: by the rules for untuned kernels, elsewhere by a prior.

The rules estimate cycles of microkernels with packed weights, from the shape, the tiles, the threads and the width of
vectors (`targets.expected_cycles`); launches without a tuned entry follow them, too. No prior was trained on microkernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import expected_cycles
from dispatch_profiler.tuner.strategies.prior import Prior

#: Variances of errors that differ smoothly between configurations, in squared natural logarithms of times: of a prior, and of
#: the rules. With more, a search of microkernels expects gains that it does not find: of five operations drawn by a seed, 0.6 to
#: 14 % after 16 evaluations with 0.1, and 0 to 7 % with 0.02, where 24 further evaluations find 0 to 1 %.
SMOOTH, RULED = 0.1, 0.02
#: How many times as long as the best microkernel with a packed weight the best other configuration takes, in the geometric
#: mean.
_OTHERS = 1.4


class SpeedModel:
    """Predicts times of configurations of `operation` on a number of `threads`. Without a `prior`, others are all alike."""

    def __init__(self, operation: Operation, threads: int, prior: Prior | None) -> None:
        self._operation = operation
        self._threads = threads
        self._prior = prior
        #: The fewest cycles that are expected of the first configurations, the best of which are known by the rules.
        self._fewest: float | None = None

    def predict(
        self, configurations: Sequence[Configuration], vectors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(logarithms of times up to a constant, variances of their smooth errors), for rows of `SearchSpace.vectors`.

        Lower is faster.
        """
        found = np.zeros(len(vectors)) if self._prior is None else self._prior.predict(vectors)
        each = [
            expected_cycles(configuration, self._operation, self._threads) for configuration in configurations
        ]
        known = np.array([cycles is not None for cycles in each], bool)
        cycles = np.array([cycles for cycles in each if cycles is not None])
        if self._fewest is None and len(cycles):
            self._fewest = float(cycles.min())
        found += math.log(_OTHERS)
        if self._fewest is not None:
            found[known] = np.log(cycles / self._fewest)
        return found, np.where(known, RULED, SMOOTH)
