"""What a process of pytest knows of the run that it is a part of."""

from __future__ import annotations

from pathlib import Path

import pytest


def is_expendable(config: pytest.Config) -> bool:
    """Whether this is the process of tests that work on the compiler's IR."""
    return config.getoption("asked_through") is not None


def folder_of_session(config: pytest.Config) -> Path:
    """A folder of this run of pytest, shared by its workers, whose own folders lie in it."""
    given: Path | None = config.getoption("session_folder")
    if given is not None:
        return given
    own: Path = config._tmp_path_factory.getbasetemp()
    return own.parent if hasattr(config, "workerinput") else own
