"""e^x and erf as instructions, which numpy executes here one by one, against values in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import erf

from dispatch_profiler.configurations.cpu.plans.vectors import error_function, exponential

VECTOR = "vector<16xf32>"


def executed(lines: Sequence[str], x: np.ndarray) -> np.ndarray:
    """The value %y of instructions on %x, in f32; each multiply-add is rounded once."""
    values: dict[str, np.ndarray] = {"%x": x}
    one = np.float32
    instructions = {
        "math.fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(one),
        "arith.subf": lambda a, b: a - b,
        "arith.mulf": lambda a, b: a * b,
        "arith.divf": lambda a, b: a / b,
        "arith.cmpf olt,": lambda a, b: a < b,
        "arith.cmpf ogt,": lambda a, b: a > b,
        "arith.select": np.where,
        "arith.shli": lambda a, b: a << b,
    }
    for line in lines:
        name, text = line.split(" = ")
        body, type_ = text.rsplit(" : ", 1)
        if match := re.fullmatch(r"arith\.constant dense<(.*)>", body):
            values[name] = one(match[1]) if type_ == VECTOR else np.int32(match[1])
        elif body.startswith("arith.bitcast"):
            source, result = body.split()[1], type_.split(" to ")[1]
            values[name] = values[source].view(np.float32 if result == VECTOR else np.int32)
        else:
            operands = re.findall(r"%\w+", body)
            values[name] = instructions[body[: body.index("%")].strip()](*(values[each] for each in operands))
    assert values["%y"].dtype == np.float32
    return values["%y"]


def e_to_the(x: np.ndarray, *, negated: bool) -> np.ndarray:
    return executed(exponential("%x", "%y", VECTOR, "_1", negated=negated), x)


@pytest.mark.parametrize("negated", [False, True])
def test_the_error_of_e_x_is_below_what_the_module_says(negated):
    x = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1e-3, 1e-3, 2001)]).astype(np.float32)
    x = -x if negated else x
    exact = np.exp((-x if negated else x).astype(np.float64))
    error = np.abs(e_to_the(x, negated=negated) / exact - 1)
    assert error[np.abs(x) < 10].max() < 3e-7
    assert error.max() < 1.4e-6


@pytest.mark.parametrize("negated", [False, True])
def test_ends_are_zero_and_infinity_and_not_a_number_stays(negated):
    every_bit, quiet = np.array([0xFFFFFFFF, 0x7FC00001], np.uint32).view(np.float32)
    x = np.array([-np.inf, -200, -87.7, 0, 88.4, 200, np.inf, every_bit, quiet], np.float32)
    with np.errstate(all="ignore"):
        found = e_to_the(-x if negated else x, negated=negated)
    expected = [0, 0, 0, 1, np.inf, np.inf, np.inf, np.nan, np.nan]
    assert np.array_equal(found, np.array(expected, np.float32), equal_nan=True)


def test_the_error_of_erf_is_below_what_the_module_says():
    x = np.concatenate([np.linspace(-6, 6, 400_001), np.linspace(-1e-3, 1e-3, 2001), [1e30, -1e30]]).astype(
        np.float32
    )
    found = executed(error_function("%x", "%y", VECTOR, "_1"), x)
    error = np.abs(found - erf(x.astype(np.float64)))
    assert error.max() < 3e-7
    assert (error <= 3e-7 * np.abs(x)).all()
    assert set(np.abs(found[np.abs(x) >= 4])) == {1.0}
    ends = executed(error_function("%x", "%y", VECTOR, "_1"), np.array([-np.inf, np.inf, np.nan], np.float32))
    assert np.array_equal(ends, np.array([-1, 1, np.nan], np.float32), equal_nan=True)


def test_no_two_values_share_a_name():
    lines = [
        *exponential("%x", "%a", VECTOR, "_1"),
        *exponential("%x", "%b", VECTOR, "_2", negated=True),
        *error_function("%x", "%c", VECTOR, "_1"),
    ]
    names = [line.split(" = ")[0] for line in lines]
    assert len(names) == len(set(names))
