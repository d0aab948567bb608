"""Trials have the fields of their configurations as parameters, for Optuna's own tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest
from search_samples import OPERATION, TILES, evaluation

from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.parameters import ParameterSpace, parameter_values
from dispatch_profiler.tuner.storage.storage import SearchKey, open_storage

KEY = SearchKey(OPERATION, {"target": "null", "seed": "0"})
CONFIGURATIONS = (Default(), Flow("data_tiling"), *TILES)
SPACE = SearchSpace(OPERATION, parse_target("llvm-cpu:x86-64-v4").limits)
PARAMETERS = ParameterSpace.of(SPACE, CONFIGURATIONS)


def store(where: str, space: ParameterSpace, *configurations: object) -> None:
    with open_storage(where) as opened, opened.study(KEY, space) as study:
        for each in configurations:
            study.add(evaluation(each))


def trials_in(where: str) -> list[optuna.trial.FrozenTrial]:
    storage = f"sqlite:///{where}"
    if where.endswith(".log"):
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(where))
    return optuna.load_study(study_name=None, storage=storage).trials


@pytest.mark.parametrize("where", ["search.db", "search.log"])
def test_the_fields_of_a_configuration_are_the_parameters_of_its_trial(where: str):
    store(where, PARAMETERS, *CONFIGURATIONS[:3])
    store(where, PARAMETERS, *CONFIGURATIONS[3:])

    found = trials_in(where)
    assert [trial.params for trial in found] == [parameter_values(each) for each in CONFIGURATIONS]
    assert (found[0].params["kind"], found[0].params["form"]) == ("default", "direct")
    assert found[2].params["vector.1"] == 4 and found[2].params["peel"] is False
    distributions = {(name, repr(each)) for trial in found for name, each in trial.distributions.items()}
    assert len(distributions) == len({name for name, _ in distributions})


def test_trials_of_earlier_versions_get_their_parameters(tmp_path: Path):
    store("search.db", ParameterSpace(), *CONFIGURATIONS[:3])
    assert [trial.params for trial in trials_in("search.db")] == [{}] * 3
    store("search.db", PARAMETERS, CONFIGURATIONS[3])
    assert [trial.params for trial in trials_in("search.db")] == [
        parameter_values(each) for each in CONFIGURATIONS[:4]
    ]


def test_what_earlier_trials_cannot_hold_is_left_out():
    """The distributions of the first trials count: choices of a parameter cannot change."""
    few = ParameterSpace({"vector.1": (4, 8)}, {"kind": ("default", "cpu_tiles")})
    store("search.db", few, TILES[0])
    store("search.db", ParameterSpace({}, {"kind": ("flow", "cpu_tiles")}), TILES[1], Flow("data_tiling"))
    first, second, third = trials_in("search.db")
    assert first.params == {"kind": "cpu_tiles", "vector.1": 4}
    assert second.params == {"kind": "cpu_tiles", "vector.1": 8}
    assert third.params == {}


def test_every_configuration_of_a_space_has_its_parameters():
    draw = np.random.default_rng(3)
    for space in range(len(SPACE.spaces)):
        for _ in range(5):
            configuration = SPACE.configuration(SPACE.draw(draw, space))
            for name, value in parameter_values(configuration).items():
                if isinstance(value, int) and not isinstance(value, bool):
                    low, high = PARAMETERS.ranges[name]
                    assert low <= value <= high, name
                else:
                    assert value in PARAMETERS.choices[name], name


def test_numbers_texts_and_truth_values_are_told_apart():
    values = parameter_values(CpuTiles((16, 32), (8, 4, 1), peel=True))
    assert values["peel"] is True and values["vector.0"] == 8 and values["kind"] == "cpu_tiles"
