"""Launches as they happen: which operation, and the memory that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dispatch_profiler.boo.launching import Launchable


@dataclass(frozen=True)
class Launch:
    """`reads` and `writes` are addresses of arguments and results."""

    operation: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """The launches in this block, whichever way they take."""
    found: list[Launch] = []
    call = Launchable.__call__

    def add(launchable: Launchable, addresses: tuple[int, ...]) -> None:
        count = len(launchable.spec.arguments)
        found.append(Launch(launchable.spec.operation.name, addresses[:count], addresses[count:]))

    def recorded(self: Launchable, *args: Any, **options: Any) -> Any:
        returned = call(self, *args, **options)
        results = returned if isinstance(returned, tuple) else (returned,)
        add(self, tuple(each.data_ptr() for each in (*args, *results)))
        return returned

    def launch_at(self: Launchable) -> Any:
        launch = self.__dict__["launch_at"]

        def launched(addresses: tuple[int, ...]) -> bool:
            is_launched: bool = launch(addresses)
            if is_launched:
                add(self, addresses)
            return is_launched

        return None if launch is None else launched

    def set_launch_at(self: Launchable, launch: Any) -> None:
        self.__dict__["launch_at"] = launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launchable, "__call__", recorded)
        patch.setattr(Launchable, "launch_at", property(launch_at, set_launch_at), raising=False)
        yield found


@contextmanager
def recorded_copies() -> Iterator[list[str]]:
    """The methods of tensors that copied elements in this block, when Python called them."""
    import torch

    found: list[str] = []

    def recording(name: str) -> Any:
        method = getattr(torch.Tensor, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            returned = method(self, *args, **options)
            if name == "copy_" or returned.data_ptr() != self.data_ptr():
                found.append(name)
            return returned

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("clone", "contiguous", "copy_", "to", "reshape", "resolve_neg"):
            patch.setattr(torch.Tensor, name, recording(name), raising=False)
        yield found


@contextmanager
def failing_launches(error: Exception) -> Iterator[None]:
    """Each launch in this block raises `error`."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launchable, "__call__", fail)
        patch.setattr(Launchable, "launch_at", property(lambda _: fail, lambda *_: None), raising=False)
        yield
