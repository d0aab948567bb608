"""Every mode of every kind through the three commands: the null target, libraries, a bundle, and planted faults."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS, arguments_of

from dispatch_profiler.operations import (
    CONV_ROLES,
    CONVOLUTION_KINDS,
    DEFAULT_SEED,
    KINDS,
    Distribution,
    Matmul,
    Operation,
    operation_from_dict,
)
from dispatch_profiler.profiler.verification.inputs import draw

pytestmark = pytest.mark.usefixtures("in_process")


def test_every_mode_of_every_kind_is_here():
    """Add a new kind to `EVERY_MODE` in every_kind.py: the tests below and those of planted faults read it."""
    assert {each.kind for each in EVERY_MODE} == set(KINDS)
    modes = {(each.kind, each.convolution.mode) for each in EVERY_MODE if each.convolution}
    assert modes == set(itertools.product(CONVOLUTION_KINDS.values(), CONV_ROLES))
    assert len(set(EVERY_MODE)) == len({each.name for each in EVERY_MODE}) == len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
def test_every_kind_comes_back_from_plain_data(operation):
    assert operation_from_dict(operation.to_dict()) == operation


def test_both_gradients_of_a_matrix_product_are_matrix_products():
    """By torch's autograd in float64."""
    torch = pytest.importorskip("torch")
    forward, by_lhs, by_rhs = (each for each in EVERY_MODE if isinstance(each, Matmul))
    a, b = (array.astype(np.float64) for array in draw(forward, Distribution.REALS, DEFAULT_SEED))
    gradient = np.random.default_rng(DEFAULT_SEED).uniform(-1, 1, forward.result.shape)
    with torch.enable_grad():
        leaves = [torch.from_numpy(each).requires_grad_() for each in (a, b)]
        theirs = torch.autograd.grad(leaves[0] @ leaves[1], leaves, torch.from_numpy(gradient))
    np.testing.assert_allclose(by_lhs.contract(gradient, b), theirs[0], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(by_rhs.contract(a, gradient), theirs[1], rtol=1e-13, atol=1e-13)


@pytest.fixture
def make_tree(run, shared_builds) -> Callable[..., None]:
    """Generate the default of `operations` for a target, each by its own command line, and compile."""

    def make(target: str, operations: Sequence[Operation] = EVERY_MODE) -> None:
        for operation in operations:
            outcome = run(
                "generator", f"--target={target}", "--default-config=only", *arguments_of(operation)
            )
            assert outcome.status == 0, outcome.err
        compiled = run("compile", f"--cache-dir={shared_builds}")
        assert compiled.status == 0, compiled.err

    return make


def verdicts(provider: str) -> dict[str, str]:
    """Operation -> verdict and reason, of the rows of data.csv with this provider."""
    rows = csv.DictReader(Path("data.csv").read_text().splitlines())
    return {
        row["Operation"]: f"{row['Verification']} {row['reason']}".rstrip()
        for row in rows
        if row["Provider"] == provider
    }


def test_a_bundle_of_every_kind_is_verified_beside_the_libraries(make_tree, run, tmp_path, monkeypatch):
    """numpy and torch compute every mode in f32, so that none of them is `Not supported`."""
    pytest.importorskip("torch")
    make_tree("null")
    assert run("compile", "--bundle=out.zip").status == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move("out.zip", elsewhere)
    monkeypatch.chdir(elsewhere)

    outcome = run(
        "profiler", "--bundle=out.zip", "--providers=iree,numpy,torch", "--profiling-enabled=false",
        "--output=data.csv",
    )  # fmt: skip

    assert outcome.status == 0, outcome.err
    for provider in ("IREE Codegen", "numpy", "torch"):
        assert verdicts(provider) == {each.name: "SUCCESS" for each in EVERY_MODE}, provider


def test_every_kind_is_compiled_and_verified_on_this_cpu(make_tree, run):
    """Each block has the arguments that generate its operation."""
    one_of_each = list({each.kind: each for each in EVERY_MODE}.values())
    make_tree("llvm-cpu", one_of_each)

    outcome = run("profiler", "--device=local-sync", "--profiling-enabled=false", "--output=data.csv")

    assert outcome.status == 0, outcome.err
    assert verdicts("IREE Codegen") == {each.name: "SUCCESS" for each in one_of_each}
    said = " ".join(outcome.out.split())
    for operation in one_of_each:
        assert " ".join(f"--{name}={value}" for name, value in operation.arguments().items()) in said


def last_result(operation: Operation) -> str:
    return operation.results[-1].name


@pytest.mark.parametrize("fault", ["wrong_element", "nan", "unwritten"])
def test_a_fault_in_the_last_result_of_every_kind_is_found(make_tree, run, fault):
    Path("faults.yaml").write_text(f"'*': {{fault: {fault}}}")
    make_tree("null:faults.yaml")

    outcome = run("profiler", "--profiling-enabled=false", "--output=data.csv")

    assert outcome.status == 1
    found = verdicts("IREE Codegen")
    assert set(found) == {each.name for each in EVERY_MODE}
    for operation in EVERY_MODE:
        reason = found[operation.name]
        assert reason.startswith("FAILED "), reason
        assert f"elements are wrong; the worst: {last_result(operation)}[" in reason
