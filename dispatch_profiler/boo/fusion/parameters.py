"""Operands that derive from parameters: found again without a search while a model is called with the same tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.ops.derived import derive, sampled_words


class Derived:
    """What `derive(name, sources, lambda: make(*sources))` returns, faster for the sources of the last call.

    As there, a source that was written to is noticed by its version, its address, and some of its words.
    """

    def __init__(self, name: Hashable, make: Callable[..., Tensor]) -> None:
        self._name = name
        self._make = make
        #: Replaced as a whole, so that threads see one state or another.
        self._last: tuple[list[tuple[Any, int, int]], list[Any], list[int], Tensor] | None = None

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        last = self._last
        if last is not None:
            states, words, sampled, value = last
            for source, (reference, version, address) in zip(sources, states, strict=True):
                if reference() is not source or source._version != version or source.data_ptr() != address:
                    break
            else:
                if [word.value for word in words] == sampled:
                    return value
        return self._search(sources)

    def _search(self, sources: Sequence[Tensor]) -> Tensor:
        self._last = None
        if any(type(each) not in PLAIN or each.is_inference() for each in sources):
            return derive(self._name, sources, lambda: self._make(*sources))
        # Before `derive`: a write while it runs makes the state outdated.
        drop = _drop_last(weakref.ref(self))
        states = [(weakref.ref(each, drop), each._version, each.data_ptr()) for each in sources]
        words = [word for each in sources for word in sampled_words(each)]
        sampled = [word.value for word in words]
        # Modes that watch a model's first call would keep the value from being shared. These are plain tensors.
        with _disable_current_modes():
            value = derive(self._name, sources, lambda: self._make(*sources))
        self._last = states, words, sampled, value
        return value


def _drop_last(reference: weakref.ref[Derived]) -> Callable[[object], None]:
    """What frees the value of the last call with a source: torch keeps compiled models longer than their parameters."""

    def drop(_: object) -> None:
        derived = reference()
        if derived is not None:
            derived._last = None

    return drop
