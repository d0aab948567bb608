"""Objects that are closed where their `with` block ends."""

from __future__ import annotations

from typing import TypeVar

_Closing = TypeVar("_Closing", bound="Closing")


class Closing:
    """A context manager that is closed at the end of its `with` block."""

    def close(self) -> None:
        """Release what this object holds."""
        raise NotImplementedError

    def __enter__(self: _Closing) -> _Closing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
