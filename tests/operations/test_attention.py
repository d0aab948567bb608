"""Attention: its reference against loops over numbers and against torch, and what its bounds let through."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import Attention, Distribution, SweepOptions, operation_from_dict
from dispatch_profiler.operations.attention.reference import OnlineSoftmax
from dispatch_profiler.operations.geometry import Visibility
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare

SMALL = Attention(2, 4, 5, 7, 6)
#: Every kind of attention.
CASES = [
    SMALL,
    replace(SMALL, key_heads=2),
    replace(SMALL, key_heads=1, value_size=3),
    replace(SMALL, scale=0.5),
    replace(SMALL, causal="upper_left"),
    replace(SMALL, causal="lower_right"),
    replace(SMALL, queries=9, causal="lower_right"),  # the first two queries see no key
    replace(SMALL, causal="upper_left", window=2),
    replace(SMALL, queries=9, causal="upper_left", window=1),  # the last two queries see no key
    *(
        replace(SMALL, mask=mask, mask_axes=axes)
        for mask in ("bool", "add")
        for axes in ("", "q", "bh", "bhq")
    ),
    replace(SMALL, mask="bool", mask_axes="b", causal="lower_right", key_heads=2),
    replace(SMALL, logsumexp=True),
    replace(SMALL, logsumexp=True, mask="bool", mask_axes="q"),
    replace(SMALL, layout="bshd", key_heads=2, mask="add", mask_axes="hq"),
    Attention(1, 1, 1, 1, 1),
]


def operands_of(
    operation: Attention, distribution=Distribution.REALS, seed: int = 7
) -> tuple[np.ndarray, ...]:
    return draw(operation, distribution, seed)


def by_head(operation: Attention, array: np.ndarray) -> np.ndarray:
    return array if operation.layout == "bhsd" else array.transpose(0, 2, 1, 3)


def sees(operation: Attention, query: int, key: int) -> bool:
    """The definition of each kind of causal attention, for one pair."""
    if not operation.causal:
        return True
    behind = operation.keys - operation.queries if operation.causal == "lower_right" else 0
    distance = query + behind - key
    return distance >= 0 and (not operation.window or distance < operation.window)


def by_loops(operation: Attention, operands) -> tuple[np.ndarray, np.ndarray]:
    """Results and logarithms by Python's own floats, with correctly rounded sums."""
    query, key, value = (by_head(operation, each.astype(np.float64)) for each in operands[:3])
    mask = np.broadcast_to(
        operands[3].astype(np.float64) if operation.mask else np.ones((1, 1, 1, 1)),
        (operation.batch, operation.heads, operation.queries, operation.keys),
    )
    shape = (operation.batch, operation.heads, operation.queries)
    found, logarithms = np.zeros((*shape, operation.value_size)), np.full(shape, -math.inf)
    for b, h, q in np.ndindex(*shape):
        group = h * operation.key_heads // operation.heads
        scores = {}
        for k in range(operation.keys):
            score = operation.scale * math.fsum(query[b, h, q] * key[b, group, k])
            score += mask[b, h, q, k] if operation.mask == "add" else 0.0
            is_hidden = operation.mask == "bool" and not mask[b, h, q, k]
            if sees(operation, q, k) and not is_hidden and score > -math.inf:
                scores[k] = score
        if not scores:
            continue
        top = max(scores.values())
        weights = {k: math.exp(score - top) for k, score in scores.items()}
        total = math.fsum(weights.values())
        logarithms[b, h, q] = top + math.log(total)
        for v in range(operation.value_size):
            found[b, h, q, v] = math.fsum(w / total * value[b, group, k, v] for k, w in weights.items())
    return by_head(operation, found), logarithms


def plain(
    operation: Attention, operands, *, keys: int = 0, scale: float = 0.0, causal: bool = True
) -> list[np.ndarray]:
    """A kernel in the accumulator's type; `keys`, `scale` and `causal` make it a wrong one."""
    wide = operation.accumulator.dtype
    query, key, value = (by_head(operation, each.astype(wide)) for each in operands[:3])
    shared = operation.heads // operation.key_heads
    key, value = (np.repeat(each, shared, axis=1) for each in (key, value))
    scores = query @ key.swapaxes(-1, -2) * wide.type(scale or operation.scale)
    if operation.mask == "add":
        scores = scores + operands[3].astype(wide)
    if operation.mask == "bool":
        scores = np.where(operands[3] != 0, scores, -np.inf)
    if causal:
        scores = np.where(operation.visibility.seen(slice(None)), scores, -np.inf)
    if keys:
        scores[..., keys:] = -np.inf
    scores = scores.astype(wide)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), wide.type(0.0), top)
    powers = np.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True)
    found = powers.astype(operation.element_type.dtype).astype(wide) @ value
    found = found / np.where(total == 0.0, wide.type(1.0), total)
    results = [np.ascontiguousarray(by_head(operation, found)).astype(operation.element_type.dtype)]
    if operation.logsumexp:
        with np.errstate(divide="ignore"):
            results.append((top + np.log(total))[..., 0])
    return results


# -- reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", CASES, ids=lambda each: each.name)
@pytest.mark.parametrize("type_", TYPES)
def test_the_reference_is_what_loops_compute(operation, type_):
    operation = replace(operation, type=type_)
    operands = operands_of(operation)
    for found, expected in zip(operation.reference(operands), by_loops(operation, operands), strict=False):
        np.testing.assert_allclose(found.expected, expected, rtol=1e-12, atol=1e-13)
        assert (found.tolerance[expected == 0.0] <= 1e-30).all()  # where nothing is seen


@pytest.mark.parametrize("operation", CASES, ids=lambda each: each.name)
def test_torch_computes_the_same(operation):
    """In float64, where its kernels and ours round alike."""
    torch = pytest.importorskip("torch")
    from dispatch_profiler.profiler.providers.in_torch.attention import FAMILY

    operation = replace(operation, type="f64", logsumexp=False)
    operands = operands_of(operation)
    function = FAMILY.function(torch, operation, torch.device("cpu"))
    (found,) = function([torch.from_numpy(each) for each in operands])
    (expected,) = operation.reference(operands)
    np.testing.assert_allclose(found.numpy(), expected.expected, rtol=1e-10, atol=1e-12)


def test_blocks_of_queries_change_nothing(monkeypatch):
    from dispatch_profiler.operations.attention import reference

    operation = replace(SMALL, queries=9, causal="lower_right", mask="add", mask_axes="hq", logsumexp=True)
    operands = operands_of(operation)
    whole = operation.reference(operands)
    monkeypatch.setattr(reference, "BLOCK", 2 * operation.keys)
    for one, other in zip(operation.reference(operands), whole, strict=True):
        np.testing.assert_allclose(one.expected, other.expected, rtol=1e-14)
        np.testing.assert_allclose(one.tolerance, other.tolerance, rtol=1e-9)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (3, 7), (7, 3)])
@pytest.mark.parametrize("window", [0, 1, 3, 10])
@pytest.mark.parametrize("causal", ["upper_left", "lower_right"])
def test_pairs_that_are_seen_are_counted(causal, window, queries, keys):
    visibility = Visibility(queries, keys, causal, window)
    operation = Attention(1, 1, queries, keys, 1, causal=causal, window=window)
    seen = visibility.seen(slice(None))
    assert seen.tolist() == [[sees(operation, q, k) for k in range(keys)] for q in range(queries)]
    assert visibility.pairs == seen.sum()


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", Attention.distributions)
@pytest.mark.parametrize(
    "operation", [*CASES, Attention(1, 2, 33, 700, 64, key_heads=1)], ids=lambda each: each.name
)
@pytest.mark.parametrize("type_", TYPES)
def test_a_plain_kernel_passes(operation, type_, distribution):
    operation = replace(operation, type=type_)
    operands = operands_of(operation, distribution)
    for bound in (None, OnlineSoftmax(8)):
        references = operation.reference(operands, error_bound=bound)
        assert compare(operation, plain(operation, operands), references).passed


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize(
    ("operation", "wrong"),
    [
        (Attention(1, 2, 8, 64, 16), {"keys": 63}),
        (Attention(1, 2, 8, 64, 16), {"scale": 0.24}),
        (Attention(1, 2, 64, 64, 16, causal="upper_left"), {"causal": False}),
        (Attention(1, 2, 64, 64, 16, causal="upper_left", window=8, logsumexp=True), {"causal": False}),
    ],
    ids=["a key too few", "another scale", "not causal", "no window"],
)
def test_a_wrong_kernel_fails(operation, wrong, type_):
    operation = replace(operation, type=type_)
    operands = operands_of(operation)
    assert not compare(operation, plain(operation, operands, **wrong), operation.reference(operands)).passed


def test_a_query_that_sees_no_key_must_be_zero():
    """And its logarithm minus infinity."""
    operation = replace(SMALL, mask="bool", mask_axes="q", logsumexp=True)
    operands = operands_of(operation)
    found = plain(operation, operands)
    assert np.isneginf(found[1][..., 0]).all() and not found[0][:, :, 0].any()
    assert compare(operation, found, operation.reference(operands)).passed
    for at, value in ((0, math.nan), (0, 1e-3), (1, 0.0), (1, math.nan)):
        wrong = [each.copy() for each in found]
        wrong[at][0, 0, 0] = value
        assert not compare(operation, wrong, operation.reference(operands)).passed


# -- fields ----------------------------------------------------------------------------------------


def test_usual_values_are_filled_in():
    given = Attention(1, 8, 4, 4, 16, key_heads=8, value_size=16, scale=0.25)
    assert given == Attention(1, 8, 4, 4, 16)
    assert given.name == "attention_1x8x4x4x16_f32t"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 0}, "every extent must be at least 1, but got heads=0"),
        ({"key_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"window": 2}, "a window needs causal attention"),
        ({"window": -1}, "must be at least 0, but got window=-1"),
        ({"mask_axes": "q"}, "mask_axes without a mask"),
        ({"mask": "bool", "mask_axes": "qb"}, "mask_axes must be letters of 'bhq' in this order"),
        ({"mask": "float"}, "no mask 'float'"),
        ({"causal": True}, "no causal True"),
        ({"layout": "sbhd"}, "no layout 'sbhd'"),
        ({"scale": -1.0}, "scale must be a number above 0"),
        ({"scale": 1}, "scale must be a number above 0"),
        ({"type": "i8"}, "no element type i8"),
        ({"logsumexp": 1}, "logsumexp must be True or False"),
    ],
)
def test_what_does_not_exist_is_rejected(fields, message):
    with pytest.raises(OperationError) as caught:
        replace(SMALL, **fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("operation", CASES, ids=lambda each: each.name)
def test_a_sweep_of_its_own_arguments_makes_it_again(operation):
    """Which the command line has as text."""
    options = {each.name: each for each in Attention.shape_options}
    given = {
        name.replace("-", "_"): options[name.replace("-", "_")].parse(text)
        for name, text in operation.arguments().items()
    }
    made = [make() for make in Attention.sweep(SweepOptions(shapes=given))]
    assert made == [operation] and operation_from_dict(operation.to_dict()) == operation


def test_options_without_extents_change_the_predefined_problems():
    """Windows only where attention is causal: others are invalid, with the reason."""
    made = [make() for make in Attention.sweep(SweepOptions(shapes={"attention_layout": ("bshd",)}))]
    assert len(made) == 10 and {each.layout for each in made} == {"bshd"}
    assert {each.causal for each in made} == {"", "upper_left"}
    every = [make() for make in Attention.sweep(SweepOptions(shapes={"attention_causal": ("lower_right",)}))]
    assert len(every) == 10 and {each.causal for each in every} == {"lower_right"}
    factories = list(
        Attention.sweep(SweepOptions(shapes={"attention_window": (4,), "attention_type": ("f32",)}))
    )
    valid = 0
    for make in factories:
        try:
            valid += make().window == 4
        except OperationError as error:
            assert "a window needs causal attention" in str(error)
    assert len(factories) == 5 and valid == 2


def test_names_are_unique():
    names = [each.name for each in CASES]
    assert len(set(names)) == len(names)
