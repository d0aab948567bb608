"""Targets are read as they are written, and each gives the compiler and the runtime what they need."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Limits, shipped_configurations
from dispatch_profiler.errors import TargetError
from dispatch_profiler.targets import DEFAULT_TARGET, FAMILIES, CpuTarget, NullTarget, parse_target

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
CPU_NAMES = st.from_regex(r"\A[A-Za-z0-9_.+-]+\Z")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("llvm-cpu", CpuTarget()),
        ("llvm-cpu:host", CpuTarget()),
        ("llvm-cpu:znver4", CpuTarget("znver4")),
        ("null", NullTarget()),
        ("null:/faults/a:b.yaml", NullTarget("/faults/a:b.yaml")),
    ],
)
def test_a_target_is_a_family_with_or_without_detail(text, target):
    """All behind the first colon is the detail."""
    assert target == parse_target(text)


@PROPERTY
@given(st.builds(CpuTarget, CPU_NAMES) | st.builds(NullTarget, st.text()))
def test_a_target_is_read_back_from_its_name(target):
    """The name is what stands on the command line."""
    assert target == parse_target(target.name)


def test_the_default_is_this_cpu():
    """Where no target is named."""
    assert CpuTarget("host") == parse_target(DEFAULT_TARGET)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("llvmcpu", "did you mean 'llvm-cpu'? There is: llvm-cpu, null"),
        ("llvm_cpu:znver4", "did you mean 'llvm-cpu'? There is: llvm-cpu, null"),
        ("Null", "did you mean 'null'? There is: llvm-cpu, null"),
        ("", "there is: llvm-cpu, null"),
        (":znver4", "there is: llvm-cpu, null"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest(text, hint):
    """The message has what was written, the hint the families that there are."""
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert (f"unknown target {text!r}", hint) == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize("detail", ["", " ", "zn ver4", "znver4;ls", "znver4\n", "a/b", "a:b", "a=b"])
def test_what_cannot_be_a_cpu_is_refused(detail):
    """The name goes into a compiler flag, so that it is one word."""
    with pytest.raises(TargetError) as caught:
        parse_target(f"llvm-cpu:{detail}")
    assert f"malformed CPU name {detail!r}" == str(caught.value)
    assert caught.value.hint == "write llvm-cpu or llvm-cpu:znver4"


def test_flags_of_a_named_cpu():
    """The device, its backend, the CPU, and f64 kept as it is."""
    assert CpuTarget("znver4").compile_flags == (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=znver4",
        "--iree-input-demote-f64-to-f32=false",
    )


@pytest.mark.parametrize(("target", "uri"), [(CpuTarget(), "local-task"), (NullTarget(), "null")])
def test_a_target_names_the_device_that_runs_it(target, uri):
    """Unless the user names another."""
    assert uri == target.device_uri


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_plain_target_and_a_list_of_configurations(family):
    """What stands in the table under a name is what the name says."""
    plain = parse_target(family)
    assert (family, family) == (plain.family, plain.name)
    assert shipped_configurations(plain.shipped_list)


def test_the_null_target_needs_nothing():
    """No flags, no limits, and a fingerprint that is the same everywhere."""
    target = NullTarget("faults.yaml")
    assert ((), Limits(), "") == (target.compile_flags, target.limits, target.fingerprint)


@pytest.mark.parametrize("target", [CpuTarget("znver4"), NullTarget("faults.yaml")])
def test_a_target_is_a_value(target):
    """Frozen, and equal targets are one key."""
    assert {target: 1} == {dataclasses.replace(target): 1}
    field = dataclasses.fields(target)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(target, field, "other")
