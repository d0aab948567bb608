"""What is proven about a model: sides in turns, their ratios, wrong and failing sides, and what to do."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from dispatch_profiler.boo.environment import TUNING_VARIABLE
from dispatch_profiler.boo.model_tuning.proof import (
    AFTER,
    BEFORE,
    EAGER,
    INDUCTOR,
    ModelProof,
    ModelSide,
    ProofEffort,
    SideCall,
    Way,
    in_turns,
    prove,
    usual_ways,
)
from dispatch_profiler.boo.model_tuning.verdict import conclusions, headline, rows

_torch: Any = torch
LIBRARY = Path("tuned/final")


class Net(nn.Module):
    """A layer, a batch norm whose statistics change in training, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.dropout = nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout()

    def forward(self, x: Any) -> Any:
        """A row of 4 for each row of 8."""
        return self.dropout(self.norm(self.layer(x)))


#: Three rounds of one call.
BRIEF = ProofEffort(round_seconds=0.0, most_rounds=3)


def computes(change: Any, seen: list[str | None] | None = None) -> Any:
    """A backend whose graphs compute `change` of their results."""

    def backend(module: Any, example_inputs: Any, **_: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if seen is not None:
                seen.append(os.environ.get(TUNING_VARIABLE))
            return _torch.utils._pytree.tree_map(change, module(*arguments))

        return run

    return backend


def fails(module: Any, example_inputs: Any, **_: Any) -> Any:
    """A backend without support for the graph."""
    raise ValueError("no such operator")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x * (1 + 1e-6), ""),
        (lambda x: x + 1.0, "is wrong: an error of 1 where the largest element is"),
        (lambda x: x[:1], "is wrong: a result of shape (1, 4) instead of (2, 4)"),
        (lambda x: torch.where(x == x.max(), math.nan, x), "is wrong: an error of inf"),
        (lambda x: torch.where(x == x.max(), math.inf, x), "is wrong: an error of inf"),
        (lambda x: (x, x), "is wrong: 2 results instead of 1"),
    ],
    ids=["rounding", "offset", "shape", "nan", "inf", "count"],
)
def test_a_side_that_computes_something_else_is_not_timed(change: Any, reason: str):
    ways = {EAGER: Way(), BEFORE: Way(computes(change))}
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    found = prove("net", Net().eval(), x, ways, effort=BRIEF)
    side = found.sides[BEFORE]
    assert side.failure.startswith(reason) and bool(side.failure) is bool(reason)
    assert len(side.milliseconds) == (0 if reason else 3) and len(found.sides[EAGER].milliseconds) == 3


def test_a_backend_that_fails_is_a_side_with_a_reason():
    found = prove("net", Net().eval(), torch.randn(2, 8), {EAGER: Way(), INDUCTOR: Way(fails)}, effort=BRIEF)
    assert "no such operator" in found.sides[INDUCTOR].failure
    assert found.speedup(INDUCTOR, EAGER) is None and found.speedup(EAGER, AFTER) is None


@pytest.mark.parametrize("before", [None, "xeon-avx512"])
def test_the_library_is_named_in_its_own_calls_only_and_no_other_one_is(
    monkeypatch: pytest.MonkeyPatch, before: str | None
):
    if before is None:
        monkeypatch.delenv(TUNING_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(TUNING_VARIABLE, before)
    seen: dict[str, list[str | None]] = {BEFORE: [], AFTER: []}
    ways = {
        EAGER: Way(),
        BEFORE: Way(computes(lambda x: x, seen[BEFORE])),
        AFTER: Way(computes(lambda x: x, seen[AFTER]), library="tuned"),
    }
    prove("net", Net().eval(), torch.randn(2, 8), ways, effort=BRIEF)
    assert set(seen[BEFORE]) == {None} and set(seen[AFTER]) == {"tuned"}
    assert os.environ.get(TUNING_VARIABLE) == before


def test_in_training_gradients_are_computed_and_the_model_stays_as_it_is():
    model, x = Net().train(), torch.randn(2, 8)
    state, random = {name: each.clone() for name, each in model.state_dict().items()}, torch.get_rng_state()
    ways = {EAGER: Way(), BEFORE: Way(computes(lambda each: each))}
    found = prove("net", model, x, ways, training=True, effort=BRIEF)
    assert not found.sides[BEFORE].failure and "draws random numbers" in found.note
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(each.grad is None for each in model.parameters())


def test_gradients_are_compared():
    """Of a model without dropout: they are twice eager's if the result is."""
    found = prove(
        "net",
        nn.Linear(8, 4),
        torch.randn(2, 8),
        {EAGER: Way(), BEFORE: Way(computes(lambda x: 2 * x))},
        training=True,
        effort=BRIEF,
    )
    assert found.sides[BEFORE].failure.startswith("is wrong: ") and not found.note


def test_a_model_that_changes_its_input_gets_its_own_in_each_way():
    class Adds(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1.0)

    x = torch.zeros(2, 4)
    seen: list[float] = []
    ways = {EAGER: Way(), BEFORE: Way(computes(lambda each: seen.append(float(each[0, 0])) or each))}
    prove("net", Adds(), x, ways, effort=BRIEF)
    assert seen[0] == 1.0 and not x.any()


def test_results_without_tensors_are_not_compared():
    class Sums(nn.Module):
        def forward(self, x: Any) -> Any:
            return float(x.sum())

    found = prove("net", Sums(), torch.ones(2), {EAGER: Way()}, effort=BRIEF)
    assert "no tensors" in found.note and found.sides[EAGER].milliseconds


def test_any_number_of_ways_reaches_the_backend():
    """Dynamo compiles a code object only eight times, and then runs it eagerly."""
    seen: dict[str, list[str | None]] = {f"way {number}": [] for number in range(10)}
    ways = {name: Way(computes(lambda x: x, calls)) for name, calls in seen.items()}
    prove("net", Net().eval(), torch.randn(2, 8), ways, effort=BRIEF)
    assert all(seen.values())


def test_each_side_has_a_figure_in_each_round():
    called: list[str] = []
    calls = {side: SideCall(lambda side=side: called.append(side), None) for side in "abc"}
    taken = in_turns(calls, BRIEF)
    assert {side: len(each) for side, each in taken.items()} == {"a": 3, "b": 3, "c": 3}
    # A call that is not timed, and one that is; every second round in reverse.
    assert "".join(called)[-18:] == "aabbccccbbaaaabbcc"


def test_weights_are_frozen_unless_the_model_is_trained():
    assert [way.freezes for way in usual_ways("lib", training=False).values()] == [False, False, True, True]
    assert not any(way.freezes for way in usual_ways("lib", training=True).values())
    assert list(usual_ways(None, training=False)) == [EAGER, INDUCTOR, BEFORE]


# -- what follows ----------------------------------------------------------------------------------


def proven(**milliseconds: float | str) -> ModelProof:
    """Sides whose rounds vary by 1 %, in the same way; a text is the reason of a failure."""
    rounds = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 1.0]
    names = {"eager": EAGER, "inductor": INDUCTOR, "before": BEFORE, "after": AFTER}
    sides = {
        names[name]: ModelSide(failure=value)
        if isinstance(value, str)
        else ModelSide(tuple(value * each for each in rounds))
        for name, value in milliseconds.items()
    }
    return ModelProof("net.py:make", 2, sides)


def said(proof: ModelProof, library: Path | None = LIBRARY, *, training: bool = False) -> str:
    return "\n".join(conclusions(proof, library, training=training))


def test_a_ratio_is_that_of_the_rounds():
    """Both sides are slow in the same round, which does not widen the interval."""
    ratio = proven(eager=10.0, inductor=8.0).speedup(INDUCTOR, EAGER)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.25) and ratio.low == pytest.approx(1.25) == ratio.high


def test_a_faster_model_is_said_to_be_faster_and_how_to_use_it():
    text = said(proven(eager=10.0, inductor=8.0, before=6.0, after=5.0))
    assert "Tuning has made the model 1.20 times as fast (1.20 to 1.20)." in text
    assert 'torch.compile(model, backend="iree_boo_inductor", options={"freeze": True})' in text
    assert f"{TUNING_VARIABLE}={LIBRARY.absolute()}" in text and "Inductor" not in text


def test_inductor_is_recommended_where_it_is_faster():
    text = said(proven(eager=10.0, inductor=4.0, before=6.0, after=5.0))
    assert (
        "Inductor is faster for this model on this machine (1.25 times as fast): use torch.compile(model)."
        in text
    )
    assert "iree_boo_inductor" not in text


@pytest.mark.parametrize(
    ("proof", "library", "sentence", "names_library"),
    [
        (proven(eager=9.0, inductor=8.0, before=5.0, after=5.0), LIBRARY, "no difference", True),
        (proven(eager=9.0, inductor=8.0, before=5.0, after=6.0), LIBRARY, "do not use them", False),
        (proven(eager=9.0, inductor=8.0, before=5.0), None, "No kernel is faster", False),
        (proven(eager=9.0, inductor="fails: x", before=5.0, after=4.0), LIBRARY, "1.25 times as fast", True),
    ],
)  # fmt: skip
def test_a_library_that_brings_nothing_is_not_recommended(
    proof: ModelProof, library: Path | None, sentence: str, names_library: bool
):
    text = said(proof, library)
    assert sentence in text and (TUNING_VARIABLE in text) is names_library


def test_eager_is_recommended_where_it_is_the_fastest():
    text = said(proven(eager=3.0, inductor="fails: no compiler", before=6.0, after=5.0))
    assert (
        "Eager PyTorch is faster for this model on this machine (1.67 times as fast): leave the model as it is."
        in text
    )
    assert "iree_boo_inductor" not in text


def test_kernels_that_compute_something_else_are_named_with_their_library():
    text = said(proven(eager=9.0, inductor=8.0, before=5.0, after="is wrong: an error of 1"))
    assert f"Do not use {LIBRARY}; the model with its kernels is wrong: an error of 1." in text
    assert "iree_boo_inductor" in text and TUNING_VARIABLE not in text


def test_what_is_recommended_is_what_is_compared():
    """The tuned kernels lose to the untuned ones, which beat inductor."""
    text = said(proven(eager=9.0, inductor=5.5, before=5.0, after=6.0))
    assert "the model takes 1.20 times as long: do not use them." in text
    assert "Inductor" not in text and "iree_boo_inductor" in text and TUNING_VARIABLE not in text


def test_a_backend_of_ours_that_fails_is_said_to():
    text = said(proven(eager=9.0, inductor=8.0, before="is wrong: x", after="is wrong: x"))
    assert (
        "Our backend cannot be used for this model: it is wrong: x" in text
        and "iree_boo_inductor" not in text
    )


def test_no_option_freezes_weights_in_training():
    assert "options=" not in said(proven(eager=9.0, inductor=8.0, before=5.0, after=4.0), training=True)


def test_the_table_has_a_row_for_each_side():
    proof = proven(eager=10.0, inductor="fails: no such operator", before=5.0)
    assert list(rows(proof)) == [
        ("", "ms a call", "over eager", "over inductor"),
        (EAGER, "10", "", ""),
        (INDUCTOR, "-", "fails: no such operator"),
        (BEFORE, "5", "2.00x (2.00-2.00)", ""),
    ]
    assert headline(proof) == "net.py:make on 2 threads, 8 rounds in turns; 95 % intervals:"
