"""What derives from weights, such as a packed one, found by the weight without a search while it stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.derived import VALUES, SourceState, derive, dropping


class _Seen:
    """A weight in one of its versions; the value is None until it is derived."""

    def __init__(self, state: SourceState, value: Any) -> None:
        self.state, self.value, self.calls = state, value, 1


class WeightValues:
    """What `derive(name, [weight], lambda: make(weight))` returns, for weights of one shape.

    `patience`: a weight that has changed is expected to change again. Until it has stayed as it is for so many calls,
    there is no value, and neither is there one for a weight of which nothing can be kept. 0: there always is one.
    """

    def __init__(self, name: Hashable, make: Callable[[Tensor], Any], *, patience: int = 0) -> None:
        self._name, self._make, self._patience = name, make, patience
        #: By the `id` of a living weight.
        self._seen: dict[int, _Seen] = {}

    def __call__(self, weight: Tensor) -> Any:
        """The value, or None."""
        seen = self._seen.get(id(weight))
        if seen is None or not seen.state.is_current((weight,)):
            return self._changed(weight, is_new=seen is None)
        if seen.value is None:
            seen.calls += 1
            if seen.calls >= self._patience:
                seen.value = self._derive(weight)
        return seen.value

    def _derive(self, weight: Tensor) -> Any:
        return derive(self._name, [weight], lambda: self._make(weight))

    def _changed(self, weight: Tensor, *, is_new: bool) -> Any:
        seen, key = self._seen, id(weight)
        # Before the value: a write while it is derived makes the state outdated.
        state = SourceState.of([weight], dropping(seen, key))
        if state is None:  # an inference tensor
            return self._derive(weight) if not self._patience or VALUES.keeps(weight) else None
        value = self._derive(weight) if is_new or not self._patience else None
        seen[key] = _Seen(state, value)
        return value
