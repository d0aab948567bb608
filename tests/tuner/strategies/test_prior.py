"""What is learned from recorded sweeps, and the prior that ships with the package."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from script_helpers import ROOT

from dispatch_profiler.configurations import Configuration, CpuTiles
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import HostCpu, cpu, parse_target
from dispatch_profiler.tuner.spaces.features import FEATURES
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies.prior import Prior, RecordedSweep, read_sweep, shipped_prior, train

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
    assert set(FEATURES) - set(prior.names) <= {"kind microkernel", "form shuffled", "form kn2row"}
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
