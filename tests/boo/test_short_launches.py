"""Which launches leave out the checks: those with the arrays of a library that was launched before, and only if they fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from launch_samples import SMALL, Kernels, aligned, drawn, expected_of, spec_of

from dispatch_profiler.boo import Launchable
from dispatch_profiler.errors import UsageError

torch: Any = pytest.importorskip("torch")

LEFT, RIGHT = map(aligned, drawn(SMALL, 1))
EXPECTED = expected_of(SMALL, [LEFT, RIGHT])[0]
ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "numpy": (LEFT, RIGHT),
    "torch": (torch.from_numpy(LEFT), torch.from_numpy(RIGHT)),
}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The libraries of launches that were checked."""
    seen: list[str] = []
    complete = Launchable.checked_launch

    def launch(self: Launchable, args: tuple[Any, ...], out: Any) -> Any:
        seen.append(type(args[0]).__module__)
        return complete(self, args, out)

    monkeypatch.setattr(Launchable, "checked_launch", launch)
    return seen


def made() -> Launchable:
    return Launchable(spec_of(SMALL), Kernels(SMALL))


def right(result: Any) -> bool:
    return bool((np.asarray(result) == EXPECTED).all())


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_only_the_first_launch_is_checked(library: str, checked: list[str]):
    launch, arguments = made(), ARGUMENTS[library]
    out = launch(*arguments)
    for _ in range(3):
        assert right(launch(*arguments))
        out[...] = 0
        assert launch(*arguments, out=out) is out and right(out)

    assert checked == [library]


def test_each_library_is_checked_once_in_a_row_of_its_launches(checked: list[str]):
    launch = made()
    for library in ("numpy", "numpy", "torch", "torch", "numpy", "numpy"):
        assert right(launch(*ARGUMENTS[library]))

    assert checked == ["numpy", "torch", "numpy"]


def subclass(array: np.ndarray) -> np.ndarray:
    return np.ma.masked_array(array)


def read_only(array: np.ndarray) -> np.ndarray:
    found = aligned(array)
    found.flags.writeable = False
    return found


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = aligned(np.zeros(array.size + 1, array.dtype))
    found = memory[1:].reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.parametrize("change", [subclass, read_only, misaligned, np.asfortranarray])
def test_what_a_kernel_cannot_use_as_it_is_is_checked(change: Any, checked: list[str]):
    launch = made()
    launch(LEFT, RIGHT)

    assert right(launch(change(LEFT), RIGHT))
    assert checked == ["numpy", type(change(LEFT)).__module__]


def test_arrays_that_do_not_fit_are_rejected_in_later_launches_too(checked: list[str]):
    square = aligned(np.eye(4, dtype=np.float32))
    launch = made()
    launch(LEFT, RIGHT)

    with pytest.raises(UsageError, match="expected f32"):
        launch(LEFT, RIGHT, out=square)
    with pytest.raises(UsageError, match="expected f32"):
        launch(LEFT.astype(np.float64), RIGHT)
    with pytest.raises(UsageError, match="expected f32"):
        launch(LEFT.astype(">f4"), RIGHT)
    with pytest.raises(UsageError, match="is read-only"):
        launch(LEFT, RIGHT, out=read_only(EXPECTED))
    assert len(checked) == 5
