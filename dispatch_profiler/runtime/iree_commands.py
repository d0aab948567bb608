"""Calls of several functions, of several programs, as one submission. See `compiler.passes.appending` for the entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt


@dataclass(frozen=True, eq=False)
class Appending:
    """Adds calls of one function to a command buffer of its device. All methods raise IREE's errors."""

    #: Bytes of temporary memory that a call needs.
    scratch: int
    _invoke: Callable[[Any, Any, Any], None]
    _begin: Any
    _append: Any
    _finish: Any
    _replay: Any

    @classmethod
    def of(
        cls, invoke: Callable[[Any, Any, Any], None], entry: Callable[[str], Any], function: str
    ) -> Appending | None:
        """`entry` looks up an entry point. None if the vmfb lacks the entry points for `function`."""
        scratch = entry(f"{function}$scratch")
        if scratch is None:
            return None
        size = rt.VmVariantList(1)
        invoke(scratch, rt.VmVariantList(0), size)
        others = (entry(f"{function}${each}") for each in ("begin", "append", "finish", "replay"))
        return cls(int(size.get_variant(0)), invoke, *others)

    def begin(self) -> Any:
        """A new command buffer."""
        commands = rt.VmVariantList(1)
        self._invoke(self._begin, rt.VmVariantList(0), commands)
        return commands.get_as_ref(0)

    def append(self, views: Sequence[Any], scratch: Any, commands: Any) -> None:
        """Add a call with these buffer views, which the caller keeps alive; `scratch` has as many bytes as it says."""
        passed = rt.VmVariantList(len(views) + 2)
        for each in (*views, scratch, commands):
            passed.push_ref(each)
        self._invoke(self._append, passed, rt.VmVariantList(0))

    def finish(self, commands: Any) -> Callable[[], None]:
        """What executes the calls that have been added, one after another, and waits: any number of times."""
        passed = rt.VmVariantList(1)
        passed.push_ref(commands)
        self._invoke(self._finish, passed, rt.VmVariantList(0))
        invoke, replay = self._invoke, self._replay
        return lambda: invoke(replay, passed, rt.VmVariantList(0))
