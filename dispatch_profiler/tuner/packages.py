"""Optional packages of the tuner, imported when they are used."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dispatch_profiler.errors import MissingDependency


def import_optuna(user: str) -> Any:
    """`optuna`. Raises MissingDependency, which says that `user` requires it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingDependency(
            f"{user} requires Optuna", hint="python -m pip install 'optuna>=4.0,<5'"
        ) from error
    return optuna


def import_ensembles() -> Any:
    """`sklearn.ensemble`. Raises MissingDependency."""
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise MissingDependency(
            "the strategy surrogate and training a prior require scikit-learn",
            hint="python -m pip install 'scikit-learn>=1.4'",
        ) from error
    return ensemble


def check_search(strategies: Collection[str]) -> None:
    """Raise MissingDependency if a package is missing that searches with these strategies need.

    Call it before problems are profiled, which takes a while.
    """
    import_optuna("a search")
    if "surrogate" in strategies:
        import_ensembles()
