"""What holds for every strategy, their models, and what is learned from recorded sweeps."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm, spearmanr
from script_helpers import ROOT, load_script
from search_spaces import CONVOLUTION, CPU, MATMUL, SEEDS, every_valid, invented_time, run, search_spaces

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, rejection_reason, spaces
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.targets import HostCpu, cpu, parse_target
from dispatch_profiler.tuner.spaces.space import ABSENT, FEATURES, SearchSpace
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY, STRATEGIES, Trial, make_strategy
from dispatch_profiler.tuner.strategies.learned import CONSTANT, FAMILY, NOISE, Posterior, Process
from dispatch_profiler.tuner.strategies.prior import Prior, RecordedSweep, read_sweep, shipped_prior, train
from dispatch_profiler.tuner.strategies.speed_model import SMOOTH

NAMES = pytest.mark.parametrize("name", STRATEGIES)
COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 2**32 - 1))
def test_nothing_invalid_is_proposed_and_nothing_twice(name: str, space: SearchSpace, counts, seed: int):
    asked = run(make_strategy(name, space, seed, SEEDS), counts)
    assert len(set(asked)) == len(asked)
    assert all(map(space.is_valid, asked))


@pytest.mark.some(2)
@NAMES
@settings(max_examples=3)
@given(space=search_spaces(), seed=st.integers(0, 99))
def test_a_small_space_is_exhausted_and_then_nothing_is_proposed(name: str, space: SearchSpace, seed: int):
    strategy = make_strategy(name, space, seed, SEEDS)
    valid = every_valid(space) | {each for each in SEEDS if space.is_valid(each)}
    asked = run(strategy, [1 + len(valid) // 3] * 5)
    assert set(asked) == valid
    assert strategy.ask(3) == []


@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, kept=st.integers(0, 5), seed=st.integers(0, 99))
def test_a_history_that_is_told_again_up_to_any_round_continues_alike(
    name: str, space: SearchSpace, counts, kept: int, seed: int
):
    """Even if the outcomes of a round arrive in another order."""
    whole = run(make_strategy(name, space, seed, SEEDS), counts)
    again = make_strategy(name, space, seed, SEEDS)
    head = []
    for count in counts[:kept]:
        batch = list(again.ask(count))
        head += batch
        random.Random(seed).shuffle(batch)
        again.tell([Trial(each, invented_time(each)) for each in batch])
    assert head + run(again, counts[kept:]) == whole


@pytest.mark.some(2)
@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 99))
def test_proposals_do_not_depend_on_what_was_asked_of_the_space_before(
    name: str, space: SearchSpace, counts, seed: int
):
    """Searches of one operation share a space, which remembers what is valid."""
    first = run(make_strategy(name, space, seed, SEEDS), counts)
    every_valid(space)
    assert run(make_strategy(name, space, seed, SEEDS), counts) == first


@NAMES
def test_seeds_come_first_and_invalid_ones_are_left_out(name: str):
    invalid = CpuTiles((7, 7), (5, 3, 1))
    space = SearchSpace(MATMUL, CPU)
    strategy = make_strategy(name, space, 0, [Default(), invalid, SEEDS[1], Default()])
    assert list(strategy.ask(1)) == [Default()]
    assert strategy.ask(2)[0] == SEEDS[1]


@pytest.mark.some(2)
@NAMES
def test_a_large_space_of_many_forms_is_searched(name: str):
    space = SearchSpace(CONVOLUTION, CPU)
    assert space.size > 10**6
    assert len(run(make_strategy(name, space, 3, SEEDS), [8, 8, 8])) == 24


@pytest.mark.parametrize("name", ["prior", "surrogate"])
def test_models_propose_nothing_invalid_where_most_points_are(name: str):
    """They rank points before they ask for reasons to reject them."""
    space = SearchSpace(CONVOLUTION, parse_target("cuda:sm_80").limits)
    asked = run(make_strategy(name, space, 1), [8, 8, 8])
    assert len(set(asked)) == 24
    assert all(map(space.is_valid, asked))


@NAMES
def test_proposals_continue_when_every_trial_failed(name: str):
    strategy = make_strategy(name, SearchSpace(MATMUL, CPU), 0, SEEDS)
    for _ in range(3):
        batch = strategy.ask(6)
        assert len(batch) == 6
        strategy.tell([Trial(each, None) for each in batch])


@NAMES
def test_trials_that_were_not_asked_are_not_proposed(name: str):
    """Those of an earlier search, for example."""
    space = SearchSpace(MATMUL, CPU)
    told = run(make_strategy(name, space, 0), [12])
    strategy = make_strategy(name, space, 0)
    strategy.tell([Trial(each, invented_time(each)) for each in told])
    assert not set(told) & set(run(strategy, [6, 6]))


@NAMES
def test_what_is_asked_before_the_last_round_is_told_is_new(name: str):
    strategy = make_strategy(name, SearchSpace(MATMUL, CPU), 0, SEEDS)
    first, second = strategy.ask(5), strategy.ask(5)
    strategy.tell([Trial(each, invented_time(each)) for each in first])
    third = strategy.ask(5)
    assert len({*first, *second, *third}) == 15


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exhaustive"])
def test_another_seed_proposes_others(name: str):
    space = SearchSpace(MATMUL, CPU)
    assert run(make_strategy(name, space, 1), [20]) != run(make_strategy(name, space, 2), [20])


# -- by name -----------------------------------------------------------------------------------------


def test_an_unknown_strategy_is_rejected_with_the_nearest_name():
    with pytest.raises(UsageError, match="unknown strategy 'radom'") as raised:
        make_strategy("radom", SearchSpace(MATMUL, CPU))
    assert "did you mean 'random'?" in raised.value.hint


def test_the_default_is_one_of_them():
    assert DEFAULT_STRATEGY in STRATEGIES


@pytest.mark.parametrize("milliseconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_trial_that_failed_has_no_time(milliseconds: float):
    with pytest.raises(ValueError, match="positive and finite, or None"):
        Trial(Default(), milliseconds)


# -- the descent at the end --------------------------------------------------------------------------


@pytest.mark.some(2)
@NAMES
def test_a_strategy_ends_with_the_neighbours_of_the_fastest_trial(name: str):
    """All that differ in one axis, the nearest choices first; and those of a faster one once it is found."""
    space = SearchSpace(MATMUL, CPU)
    strategy = make_strategy(name, space, 0, SEEDS, descend_after=10)
    times: dict[Configuration, float | None] = {}

    def evaluate(count: int) -> list[Configuration]:
        batch = list(strategy.ask(count))
        for each in batch:
            times[each] = invented_time(each)
        strategy.tell([Trial(each, times[each]) for each in batch])
        return batch

    evaluate(10)
    for _ in range(5):
        # Of equally fast ones, the first that was proposed.
        fastest = min((each for each in times if times[each] is not None), key=times.__getitem__)
        assert space.nearest_point(fastest) is not None
        # Several points map to one configuration; the strategy keeps the one that it proposed.
        before = set(times)
        batch = evaluate(4)
        left = [each for each in neighbours_of(strategy, space, fastest) if each not in before]
        assert set(batch[: len(left)]) <= set(left)


def neighbours_of(strategy, space: SearchSpace, configuration: Configuration) -> list[Configuration]:
    near = space.neighbours(strategy.point_of(configuration))
    return list(dict.fromkeys(each for each in map(space.configuration, near) if space.is_valid(each)))


@settings(max_examples=10)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 99))
def test_a_descent_proposes_nothing_invalid_and_nothing_twice(space: SearchSpace, counts, seed: int):
    asked = run(make_strategy("random", space, seed, SEEDS, descend_after=5), counts)
    assert len(set(asked)) == len(asked)
    assert all(map(space.is_valid, asked))


# -- what they require -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("genetic", "optuna", "optuna>=4.0,<5"), ("tpe", "optuna", "optuna>=4.0,<5"), ("surrogate", "sklearn", "scikit-learn>=1.4")],
)  # fmt: skip
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    name: str, module: str, package: str, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency) as raised:
        make_strategy(name, SearchSpace(MATMUL, CPU))
    assert raised.value.hint == f"python -m pip install '{package}'"


def process(
    places: list[float], families: list[int] | None = None, means: list[float] | None = None
) -> Process:
    zeros = [0] * len(places)
    variances = np.full(len(places), SMOOTH)
    return Process(
        np.array(places)[:, None], np.array(families or zeros), np.array(means or zeros, float), variances
    )


def chosen(posterior: Posterior, count: int, known: int) -> list[int]:
    """The points with the largest promise, one after the other, but for the first `known`."""
    found: list[int] = []
    for _ in range(count):
        promise = posterior.promise.copy()
        promise[[*range(known), *found]] = -np.inf
        found.append(int(np.argmax(promise)))
        posterior.assume(found[-1])
    return found


def test_what_a_point_promises_is_its_expected_improvement():
    """By numerical integration over the posterior of three independent families, of which one was observed."""
    times = np.array([1.0, 0.4])
    center = np.median(times)
    total = CONSTANT + FAMILY + SMOOTH
    # At one place, families differ by FAMILY alone.
    prior = np.full((4, 4), CONSTANT + SMOOTH)
    families = [0, 1, 0, 2]
    prior += FAMILY * np.equal.outer(families, families)
    gram = prior[:2, :2] + NOISE * np.eye(2)
    weights = np.linalg.solve(gram, times - center)
    gains = []
    for place in (2, 3):
        mean = center + prior[place, :2] @ weights
        deviation = np.sqrt(total - prior[place, :2] @ np.linalg.solve(gram, prior[:2, place]))
        gains.append(
            quad(lambda t: (0.4 - t) * norm.pdf(t, mean, deviation), mean - 9 * deviation, 0.4)[0]  # noqa: B023
        )
    found = Posterior(process([0.0] * 4, [0, 1, 0, 2]), np.arange(2), times)
    assert found.promise[2:] == pytest.approx(gains, rel=1e-4)


def test_what_is_known_beforehand_decides_where_nothing_was_observed_nearby():
    places = process([0.0, 5.0, 5.1, 4.9], means=[0.0, 0.5, -0.5, 0.0])
    assert chosen(Posterior(places, np.arange(1), np.array([2.0])), 1, known=1) == [2]


def test_points_of_one_batch_differ():
    """Where one is chosen, another nearby promises less."""
    places = process([0.0, 10.0, 5.0, 5.001, 2.5, 7.5])
    found = chosen(Posterior(places, np.arange(2), np.array([1.0, 1.0])), 3, known=2)
    assert len(set(found)) == 3
    assert {2, 3} - set(found[:2])


def test_what_is_assumed_makes_its_surroundings_certain_and_changes_no_mean():
    rng = np.random.default_rng(0)
    places = process(list(rng.uniform(0, 9, 12)), [0, 1] * 6, list(rng.standard_normal(12)))
    rows, times = np.array([3, 0, 7]), np.array([0.2, 1.0, -0.4])
    assumed = Posterior(places, rows, times)
    predicted = assumed.mean.copy()
    assumed.assume(5)
    observed = Posterior(places, np.append(rows, 5), np.append(times, predicted[5]))
    assert assumed.variance == pytest.approx(observed.variance)
    assert np.array_equal(assumed.mean, predicted)
    gain, deviation = min(-0.4, predicted[5]) - predicted, np.sqrt(observed.variance)
    expected = gain * norm.cdf(gain / deviation) + deviation * norm.pdf(gain / deviation)
    assert assumed.promise == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 3])
def test_equal_observations_do_not_matter(count: int):
    places = process([0.0] * count + [1.0, 2.0])
    found = Posterior(places, np.arange(count), np.ones(count))
    assert sorted(chosen(found, 2, known=count)) == [count, count + 1]


def test_absent_sizes_do_not_make_all_others_look_alike():
    """One configuration without tiles among thirty."""
    sizes = [*np.linspace(0.0, 6.0, 30), ABSENT]
    (covariance,) = process(sizes).covariance(np.array([0]))
    assert covariance[15] - CONSTANT - FAMILY < 0.1 * SMOOTH


@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0])
def test_trials_correct_a_prior_that_misleads(factor: float):
    """After 50 trials, even where no trial is near."""
    rng = np.random.default_rng(0)
    places, truth = list(rng.uniform(0, 99, 60)), rng.standard_normal(60)
    found = Posterior(process(places, means=list(factor * truth)), np.arange(50), truth[:50])
    assert np.polyfit(truth[50:], found.mean[50:], 1)[0] == pytest.approx(1.0, abs=0.1)


SWEEPS = sorted((ROOT / "benchmarks" / "sweeps").glob("*.jsonl.gz"))


def invented_sweep(m: int) -> RecordedSweep:
    """A vector tile of 8 rows is twice as fast as one of 4."""
    times: dict[Configuration, float | None] = {
        CpuTiles((16 * i, 64), (rows, 32, k)): 8.0 / rows
        for i in (1, 2, 4)
        for rows in (4, 8)
        for k in (1, 2, 4)
    }
    return RecordedSweep(Matmul(m, 128, 64), parse_target("llvm-cpu"), 16, (), times)


def test_a_prior_ranks_configurations_of_another_operation():
    pytest.importorskip("sklearn")
    space = SearchSpace(Matmul(96, 128, 64), parse_target("llvm-cpu").limits, cores=16)
    slow, fast = train([invented_sweep(64), invented_sweep(128)]).predict(
        space.vectors([CpuTiles((32, 64), (4, 32, 4)), CpuTiles((32, 64), (8, 32, 4))])
    )
    assert 0.5 * math.log(2) < slow - fast <= 1.01 * math.log(2)


def test_the_forest_predicts_what_scikit_learn_does():
    """Its trees are stored as arrays."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    sweeps = [invented_sweep(64), invented_sweep(192)]
    vectors = np.concatenate([each.search_space().vectors(each.times) for each in sweeps])[:, : len(FEATURES)]
    targets = np.array([math.log(time) for each in sweeps for time in each.times.values()])
    expected = ensemble.ExtraTreesRegressor(60, min_samples_leaf=5, max_features=0.5, random_state=3)
    expected.fit(vectors, targets, sample_weight=np.full(len(targets), 1 / 18))
    assert train(sweeps, seed=3).predict(vectors) == pytest.approx(expected.predict(vectors), abs=1e-5)


def test_a_saved_prior_predicts_the_same(tmp_path: Path):
    pytest.importorskip("sklearn")
    prior = train([invented_sweep(64)])
    prior.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        again = Prior(**arrays)
    vectors = np.random.default_rng(0).standard_normal((50, len(FEATURES)))
    assert np.array_equal(again.predict(vectors), prior.predict(vectors))


def test_a_prior_finds_its_features_by_their_names():
    """A feature that was added later changes no prediction."""
    prior = shipped_prior("llvm-cpu")
    assert prior is not None
    vectors = np.random.default_rng(0).uniform(-16, 16, (50, len(FEATURES)))
    backwards = Prior(
        prior.names[::-1],
        prior.roots,
        np.where(prior.feature < 0, -1, len(prior.names) - 1 - prior.feature),
        prior.threshold,
        prior.right,
    )
    assert np.array_equal(backwards.predict(vectors), prior.predict(vectors))
    vectors[:, FEATURES.index("kind microkernel")] += 1
    assert np.array_equal(backwards.predict(vectors), prior.predict(vectors))


def test_the_shipped_prior_knows_every_feature_but_new_kinds():
    """If this fails, run scripts/train_priors.py."""
    prior = shipped_prior("llvm-cpu")
    assert prior is not None
    assert set(FEATURES) - set(prior.names) <= {
        "kind microkernel",
        "kind amx_microkernel",
        "kind winograd_microkernel",
        "kind packed_in_calls",
        "kind depthwise_gradient",
        "kind dot_microkernel",
        "kind rows_microkernel",
        "kind images_microkernel",
        "kind attention_microkernel",
        "kind decoding_microkernel",
        "kind int4_microkernel",
        "kind triton_attention",
        "flow inner_tiled",
        "flow tiled_convolutions",
        "form shuffled",
        "form kn2row",
    }
    assert set(prior.names) <= set(FEATURES)
    assert shipped_prior("cuda") is None


@pytest.mark.parametrize("path", SWEEPS, ids=[path.name.split(".")[0] for path in SWEEPS])
def test_a_recorded_sweep_agrees_with_the_rules_of_today_and_with_the_prior(
    monkeypatch: pytest.MonkeyPatch, path: Path
):
    """The prior was trained on it, with AVX-512. If this fails after a change of features, run scripts/train_priors.py."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: HostCpu("Xeon", frozenset({"avx", "avx2", "avx512f"})))
    sweep = read_sweep(path)
    space = sweep.search_space()
    prior = shipped_prior("llvm-cpu")
    assert prior is not None
    assert len(sweep.times) > 150
    # A rule that is added later may reject some.
    assert sum(map(space.is_valid, sweep.times)) > 0.9 * len(sweep.times)
    timed = {each: time for each, time in sweep.times.items() if time}
    assert spearmanr(prior.predict(space.vectors(timed)), list(timed.values())).statistic > 0.85


def test_sweeps_of_at_least_six_operations_are_recorded():
    assert len({read_sweep(path).operation for path in SWEEPS}) == len(SWEEPS) >= 6


OPERATION = Matmul(96, 128, 64)
IMAGES = Conv2d(1, 14, 14, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
CHOICES = {"distribution_m": [16, 32], "distribution_n": [64], "cached": [False], "cache_m": [1], "cache_n": [1],
           "cache_k": [1], "vector_m": [4, 8], "vector_n": [32], "vector_k": [4], "split_k": [1]}  # fmt: skip
HEAD = {
    "operation": OPERATION.to_dict(), "name": OPERATION.name, "target": "llvm-cpu", "cores": 16,
    "spaces": [{"of": "cpu_tiles", "axes": CHOICES}],
}  # fmt: skip


def outcome(configuration, ms: float | None) -> dict[str, object]:
    return {"configuration": configuration.to_dict(), "verdict": "SUCCESS", "ms": ms, "interval": None}


OUTCOMES = [
    outcome(Default(), 2.0),
    outcome(CpuTiles((16, 64), (8, 32, 4)), 1.0),
    outcome(CpuTiles((32, 64), (4, 32, 4)), None),
]


def write(path: Path, *lines: object) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_sweep_has_the_times_of_a_reduced_space(tmp_path: Path, name: str):
    sweep = read_sweep(write(tmp_path / name, HEAD, *OUTCOMES))
    assert sweep.operation == OPERATION
    assert sweep.cores == 16
    assert sweep.best == 1.0
    assert list(sweep.times.values()) == [2.0, 1.0, None]
    assert [space.size for space in sweep.spaces] == [4]


def test_only_what_was_recorded_is_valid_in_its_search_space(tmp_path: Path):
    space = read_sweep(write(tmp_path / "a.jsonl", HEAD, *OUTCOMES)).search_space()
    assert space.is_valid(Default())
    assert set(space.enumerate_valid(0)) == {CpuTiles((16, 64), (8, 32, 4)), CpuTiles((32, 64), (4, 32, 4))}


def test_spaces_are_found_by_name_whatever_their_order(tmp_path: Path):
    """A kind that is added later must not shift them; one that is removed is left out."""
    flow = {"of": "flow", "axes": {"flow": ["ukernels"]}}
    gone = {"of": "im3col", "axes": {"x": [1]}}
    head = {**HEAD, "spaces": [flow, gone, *HEAD["spaces"]]}
    found = read_sweep(write(tmp_path / "a.jsonl", head, *OUTCOMES)).spaces
    assert [space.kind.kind for space in found] == ["flow", "cpu_tiles"]
    assert found[1].axes[0].choices == (16, 32)
    assert len(spaces(OPERATION, CPU)) > 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["not an object"], "line 1"),
        ([HEAD], "no configuration has a time"),
        ([HEAD, OUTCOMES[2]], "no configuration has a time"),
        ([HEAD, OUTCOMES[0], {**OUTCOMES[1], "ms": -1}], "line 3: ms: expected a positive number"),
        ([HEAD, {**OUTCOMES[0], "configuration": {"kind": "nothing"}}], "line 2: unknown configuration kind"),
        ([{**HEAD, "target": "abacus"}, *OUTCOMES], "unknown target 'abacus'"),
    ],
)
def test_a_damaged_sweep_is_rejected_with_its_line(tmp_path: Path, lines, message: str):
    with pytest.raises(UsageError, match=message):
        read_sweep(write(tmp_path / "a.jsonl", *lines))


def test_a_file_that_is_cut_is_rejected(tmp_path: Path):
    path = write(tmp_path / "a.jsonl.gz", HEAD, *OUTCOMES)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"a\.jsonl\.gz"):
        read_sweep(path)


# -- recording -------------------------------------------------------------------------------------

recording = load_script("scripts/record_sweep.py")


@pytest.mark.parametrize("operation", [Matmul(1, 1000, 2048), IMAGES], ids=["matmul", "conv2d"])
def test_what_is_swept_are_small_parts_of_every_space(operation: Operation):
    full = spaces(operation, CPU)
    for space, whole in zip(map(recording.reduced, full), full, strict=True):
        assert space.size <= 1000
        for axis, all_of in zip(space.axes, whole.axes, strict=True):
            assert set(axis.choices) <= set(all_of.choices)
        if space.size > 100:
            configurations = {space.to_configuration(point) for point in space.points()}
            assert any(rejection_reason(each, operation, CPU) is None for each in configurations)


@pytest.mark.slow
def test_a_recorded_sweep_is_read_back(tmp_path: Path, monkeypatch):
    workload = tmp_path / "small.yaml"
    workload.write_text(
        "format: dispatch_profiler workload\nversion: 1\noperations:\n"
        "  - {operation: {kind: matmul, m: 4, n: 64, k: 32}}\n  - {operation: {kind: matmul, m: 8, n: 64, k: 32}}\n"
    )
    options = [
        str(workload),
        "--output",
        str(tmp_path / "out"),
        "--seconds=600",
        "--evaluations=4",
        "--part=1/2",
    ]
    monkeypatch.setattr(sys, "argv", ["record_sweep.py", *options])

    assert recording.main() == 0

    (path,) = (tmp_path / "out").iterdir()
    sweep = read_sweep(path)
    assert sweep.operation == Matmul(8, 64, 32)
    assert len(sweep.times) == 4
    assert all(map(sweep.search_space().is_valid, sweep.times))
    assert sweep.times[Default()] is not None
