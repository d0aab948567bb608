"""Runs some of the cases of a test by default: `@pytest.mark.some(3)` marks the cases of a test beyond three as slow.

A plugin of pytest, which `conftest.py` loads. The cases that stay are spread evenly over those of the test, so that each
of its parameters varies among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

_MARK = "some"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Comes before pytest deselects slow tests."""
    of_tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(_MARK) is not None and item.get_closest_marker("slow") is None:
            of_tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in of_tests.values():
        for case in _beyond(cases):
            case.add_marker("slow")


def _beyond(cases: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases that only slow runs have."""
    mark = cases[0].get_closest_marker(_MARK)
    assert mark is not None
    (count,) = mark.args
    if count < 2:
        raise pytest.UsageError(f"{cases[0].nodeid}: some({count}) keeps no two cases; mark the test as slow")
    kept = {round(at * (len(cases) - 1) / (count - 1)) for at in range(count)}
    yield from (case for at, case in enumerate(cases) if at not in kept)
