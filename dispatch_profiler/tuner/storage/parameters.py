"""Parameters of trials: the fields of configurations, which Optuna's own tools draw, filter and rank.

    space of a search -> ranges and choices of its fields -> parameters of each trial

Optuna compares each parameter of a new trial with earlier ones, which takes several times as long as storing the trial:
25 ms for 12 parameters in SQLite. So a database gets the parameters of many trials in one statement, now and then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch_profiler.configurations import FORMS, KINDS, Configuration
from dispatch_profiler.tuner.spaces.space import SearchSpace, family, field_names, field_values

#: The parameters of every configuration: the kind of its kernels, and its form.
KIND, FORM = "kind", "form"
#: The form of a configuration that has none.
_DIRECT = "direct"
#: A range is logarithmic if its last value is at least this many times the first.
_LOGARITHMIC = 8

Value = int | str | bool


def parameter_values(configuration: Configuration) -> dict[str, Value]:
    """Name -> value: `{"kind": "cpu_tiles", "form": "direct", "vector.0": 8, "peel": False}`."""
    _, form, kind, _ = family(configuration)
    fields = {name: value for name, value in field_values(configuration).items() if isinstance(value, Value)}
    return {**fields, KIND: kind, FORM: form or _DIRECT}


@dataclass(frozen=True)
class ParameterSpace:
    """The values that parameters may have: the ends of whole numbers, and the choices of texts and truth values.

    They are the same for all trials of a study, because Optuna's tools compare only such parameters.
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    choices: Mapping[str, tuple[str | bool, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, space: SearchSpace, others: Iterable[Configuration] = ()) -> ParameterSpace:
        """The parameters of every configuration of `space`, and of `others`, which need not be points of it."""
        values: dict[str, dict[Value, None]] = {}
        for each in space.spaces:
            for extreme in (0, -1):
                corner = each.to_configuration(tuple(axis.choices[extreme] for axis in each.axes))
                _collect(values, corner)
            for name, axis in field_names(each):
                values.setdefault(name, {}).update(dict.fromkeys(axis.choices))
        for configuration in (*space.likely, *others):
            _collect(values, configuration)
        numbers = {
            name: [v for v in found if isinstance(v, int) and _is_number(v)] for name, found in values.items()
        }
        ranges = {name: (min(all_), max(all_)) for name, all_ in numbers.items() if all_}
        choices = {
            name: (False, True) if all(isinstance(v, bool) for v in found) else tuple(map(str, found))
            for name, found in values.items()
            if not numbers[name]
        }
        return cls(ranges, {**choices, KIND: tuple(KINDS), FORM: (_DIRECT, *FORMS)})


def _collect(values: dict[str, dict[Value, None]], configuration: Configuration) -> None:
    for name, value in parameter_values(configuration).items():
        values.setdefault(name, {})[value] = None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class StudyParameters:
    """Writes the parameters of the trials of one study to `storage`, Optuna's.

    Earlier trials determine the distributions of their parameters. Values that these do not have are left out.
    """

    def __init__(self, storage: Any, space: ParameterSpace) -> None:
        from optuna import distributions

        self._engine: Any = getattr(storage, "engine", None)  # a journal has none
        self._distributions: dict[str, Any] = {}
        for name, (low, high) in space.ranges.items():
            is_log = low > 0 and high >= _LOGARITHMIC * low
            self._distributions[name] = distributions.IntDistribution(low, high, log=is_log)
        for name, choices in space.choices.items():
            self._distributions[name] = distributions.CategoricalDistribution(choices)
        #: The number of a trial in the database -> its configuration.
        self._waiting: dict[int, Configuration] = {}

    def learn(self, trial: Any, configuration: Configuration) -> None:
        """Take over what an earlier trial has; one without parameters, as earlier versions wrote it, gets them."""
        self._distributions.update(trial.distributions)
        if not trial.params:
            self.wrote(trial._trial_id, configuration)

    def of_new(self, configuration: Configuration) -> dict[str, Any]:
        """Arguments of a new trial; none for a database, which gets them later."""
        if self._engine is not None:
            return {}
        values = self._values(configuration)
        return {"params": values, "distributions": {name: self._distributions[name] for name in values}}

    def wrote(self, trial: int, configuration: Configuration) -> None:
        """A trial was stored, with the arguments of `of_new`."""
        if self._engine is not None and self._distributions:
            self._waiting[trial] = configuration

    def flush(self) -> None:
        """Write what waits, all at once."""
        if not self._waiting or self._engine is None:
            return
        import sqlalchemy
        from optuna.distributions import distribution_to_json
        from optuna.storages._rdb.models import TrialParamModel

        texts = {name: distribution_to_json(each) for name, each in self._distributions.items()}
        rows = [
            {
                "trial_id": trial,
                "param_name": name,
                "param_value": self._distributions[name].to_internal_repr(value),
                "distribution_json": texts[name],
            }
            for trial, configuration in self._waiting.items()
            for name, value in self._values(configuration).items()
        ]
        self._waiting = {}
        # Another process that took the study over may have written them.
        with contextlib.suppress(sqlalchemy.exc.IntegrityError), self._engine.begin() as connection:
            connection.execute(sqlalchemy.insert(TrialParamModel), rows)

    def _values(self, configuration: Configuration) -> dict[str, Value]:
        values = parameter_values(configuration)
        return {name: value for name, value in values.items() if self._has(name, value)}

    def _has(self, name: str, value: Value) -> bool:
        known = self._distributions.get(name)
        if known is None:
            return False
        choices = getattr(known, "choices", None)
        if choices is not None:
            return not _is_number(value) and value in choices
        return isinstance(value, int) and _is_number(value) and known.low <= value <= known.high
