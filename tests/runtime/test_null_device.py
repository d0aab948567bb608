"""The null target: what its compiler writes and its device does, with every fault."""

from __future__ import annotations

import json
import os
import signal
import threading

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildError, BuildRequest, NullCompiler, compiler_for
from dispatch_profiler.compiler.backends.null import RUN_FAULTS, Rule, load_rules
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import (
    ELEMENT_TYPES,
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels
from dispatch_profiler.profiler.verification.inputs import draw, poison
from dispatch_profiler.profiler.verification.verify import compare_result
from dispatch_profiler.runtime import NullDevice, RunError, open_device
from dispatch_profiler.targets import parse_target

TYPES = [
    ElementTypes("f64", "f64", "f64"),
    ElementTypes("f32", "f32", "f32"),
    ElementTypes("f16", "f16", "f16"),
    ElementTypes("bf16", "bf16", "bf16"),
    ElementTypes("f8", "f8", "f8"),
    ElementTypes("i8", "i8", "i32"),
]
all_types = pytest.mark.parametrize("types", TYPES, ids=lambda t: t.result)
both = pytest.mark.parametrize("distribution", list(Distribution))
DEFAULT = Dispatch(Matmul(4, 6, 8), Default())
TILED = Dispatch(Matmul(4, 6, 8), CpuTiles((4, 6), (2, 2, 2)))


def request_of(*dispatches: Dispatch, repeat: int = 10) -> BuildRequest:
    return BuildRequest("", dispatches, (), repeat)


def call_of(operation: Operation, inputs, *, profile: bool = False, **rule):
    """The default dispatch of `operation`, compiled under one rule, loaded and bound."""
    dispatch = Dispatch(operation, Default())
    built = NullCompiler((Rule("*", **rule),)).build(request_of(dispatch))
    device = DeviceKernels(NullDevice())
    program = device.load(built.profile if profile else built.verify)
    return program.bind(dispatch.name, device.put(operation, inputs))


# -- results ---------------------------------------------------------------------------------------


@both
@all_types
def test_without_a_fault_every_result_is_right(types, distribution):
    """The null device is a right kernel for every kind and type."""
    for operation in (
        Matmul(4, 6, 8, types, epilogue=Epilogue.parse("bias")),
        BatchMatmul(2, 4, 6, 8, types),
        Conv2d(1, 6, 6, 4, 4, 3, 3, types=types),
    ):
        inputs = draw(operation, distribution, 1)
        assert compare_result(
            operation.result, call_of(operation, inputs).run()[0], reference(operation, inputs)
        ).passed


@pytest.mark.parametrize(
    ("fault", "wrong"), [("wrong_element", 1), ("nan", 1), ("inf", 1), ("unwritten", 12)]
)
@both
@all_types
def test_every_fault_of_a_result_is_found(types, distribution, fault, wrong):
    """As many elements are wrong as the fault says, from the middle on."""
    operation = Matmul(4, 6, 8, types)
    inputs = draw(operation, distribution, 1)
    with np.errstate(invalid="ignore"):  # NaN and infinity become some integer
        actual = call_of(operation, inputs, fault=fault).run()[0]
    comparison = compare_result(operation.result, actual, reference(operation, inputs))
    assert (comparison.passed, comparison.wrong) == (False, wrong)
    assert comparison.index == (2, 0) if wrong == 1 else comparison.index >= (2, 0)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(types=st.sampled_from(TYPES), value=st.integers(-15, 15))
def test_a_wrong_element_is_wrong_whatever_it_should_be(types, value):
    """No value of the result is left as it is, also not where rounding is coarse."""
    operation = Matmul(1, 1, 1, types)
    inputs = [np.full((1, 1), v).astype(types.input.dtype) for v in (value, 1)]
    actual = call_of(operation, inputs, fault="wrong_element").run()[0]
    assert not compare_result(operation.result, actual, reference(operation, inputs)).passed


def test_the_smallest_result_can_be_unwritten():
    """A result of one element is not written at all."""
    operation = Matmul(1, 1, 3)
    actual = call_of(operation, draw(operation, Distribution.REALS, 1), fault="unwritten").run()[0]
    assert np.isnan(actual).all()


def test_a_result_of_another_shape_than_was_compiled_is_rejected():
    """The device obeys the vmfb, and its result does not fit the memory that it was given."""
    compiled, asked = Matmul(4, 6, 8), Matmul(6, 4, 8)
    dispatch = Dispatch(compiled, Default())
    program = DeviceKernels(NullDevice()).load(NullCompiler().build(request_of(dispatch)).verify)
    inputs = draw(compiled, Distribution.REALS, 1)
    call = program.bind(dispatch.name, DeviceKernels(NullDevice()).put(asked, inputs))
    with pytest.raises(RunError, match=r"expected f32 \(6, 4\), but got float32 \(4, 6\)"):
        call.run()


def test_operands_that_change_change_the_result():
    """A device keeps results only for operands with the same elements."""
    operation = Matmul(4, 6, 8)
    device = DeviceKernels(NullDevice())
    program = device.load(NullCompiler().build(request_of(DEFAULT)).verify)
    for seed in (1, 2, 1):
        inputs = draw(operation, Distribution.REALS, seed)
        (actual,) = program.bind(DEFAULT.name, device.put(operation, inputs)).run()
        assert compare_result(operation.result, actual, reference(operation, inputs)).passed


def test_configurations_with_the_same_operands_compute_once(monkeypatch):
    computed, whole = [], Matmul.reference

    def reference(operation, operands):
        computed.append(operation)
        return whole(operation, operands)

    monkeypatch.setattr(Matmul, "reference", reference)
    device = DeviceKernels(NullDevice())
    built = NullCompiler().build(request_of(DEFAULT, TILED))
    inputs = draw(DEFAULT.operation, Distribution.REALS, 1)
    for vmfb in (built.verify, built.profile):
        for dispatch in (DEFAULT, TILED):
            device.load(vmfb).bind(dispatch.name, device.put(dispatch.operation, inputs)).time(3)
    assert computed == [DEFAULT.operation]


# -- faults that end a run -------------------------------------------------------------------------


def test_a_crash_is_a_real_signal(monkeypatch):
    """The process would die by SIGSEGV."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    call_of(DEFAULT.operation, draw(DEFAULT.operation, Distribution.REALS, 1), fault="crash").run()[0]
    assert sent == [(os.getpid(), signal.SIGSEGV)]


def test_a_hang_waits_for_what_never_comes(monkeypatch):
    """It waits without a limit."""
    waited = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: waited.append(timeout))
    call_of(DEFAULT.operation, draw(DEFAULT.operation, Distribution.REALS, 1), fault="hang").run()[0]
    assert waited == [None]


def test_memory_runs_out_as_it_does_anywhere():
    """MemoryError, as numpy and the runtime raise it."""
    call = call_of(DEFAULT.operation, draw(DEFAULT.operation, Distribution.REALS, 1), fault="memory")
    with pytest.raises(MemoryError, match="the null device is out of memory"):
        call.run()[0]
    with pytest.raises(MemoryError):
        call.time(1)


# -- times -----------------------------------------------------------------------------------------


def test_times_are_those_of_the_rule():
    """Milliseconds for one execution; a profile vmfb repeats it ten times in a call."""
    inputs = draw(DEFAULT.operation, Distribution.REALS, 1)
    assert call_of(DEFAULT.operation, inputs, time_ms=0.25).time(3) == pytest.approx(0.75e-3)
    assert call_of(DEFAULT.operation, inputs, profile=True, time_ms=0.25).time(3) == pytest.approx(7.5e-3)


def test_without_a_rule_everything_runs_at_10_gflops():
    """2 * 4 * 6 * 8 operations."""
    inputs = draw(DEFAULT.operation, Distribution.REALS, 1)
    assert call_of(DEFAULT.operation, inputs).time(1) == pytest.approx(384 / 10e9)


def test_a_time_of_zero_is_no_missing_time():
    """A rule may say 0."""
    inputs = draw(DEFAULT.operation, Distribution.REALS, 1)
    assert call_of(DEFAULT.operation, inputs, time_ms=0).time(5) == 0.0


# -- loading and binding ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vmfb",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"{}",
        b"7",
        b'{"magic": "IREE"}',
        b'{"magic": "null vmfb"}',
        b'{"magic": "null vmfb", "functions": {}, "repeat": null}',
    ],
)
def test_what_the_null_compiler_did_not_write_is_refused(vmfb):
    """With the error of a runtime that refuses a vmfb."""
    with pytest.raises(RunError, match="not made by the null compiler"):
        NullDevice().load(vmfb)


def test_a_function_that_is_not_in_the_vmfb_is_refused_by_name():
    """As IREE's runtime does it."""
    program = DeviceKernels(NullDevice()).load(NullCompiler().build(request_of(DEFAULT)).verify)
    with pytest.raises(RunError, match=f"no function {TILED.name}"):
        program.bind(
            TILED.name,
            DeviceKernels(NullDevice()).put(TILED.operation, draw(TILED.operation, Distribution.REALS, 1)),
        )


def test_a_vmfb_of_an_operation_that_does_not_exist_is_refused():
    """Here with an extent of 0."""
    data = json.loads(NullCompiler().build(request_of(DEFAULT)).verify)
    data["functions"][DEFAULT.name]["operation"]["m"] = 0
    with pytest.raises(RunError, match="damaged: matmul: every extent must be at least 1"):
        device = DeviceKernels(NullDevice())
        device.load(json.dumps(data).encode()).bind(
            DEFAULT.name, device.put(DEFAULT.operation, draw(DEFAULT.operation, Distribution.REALS, 1))
        )


def test_the_null_device_is_opened_by_its_name():
    """Also where a build of IREE is named: it needs none."""
    assert isinstance(open_device("null"), NullDevice)


# -- memory before a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8E4M3FN"])
def test_untouched_memory_of_floating_point_is_nan(name):
    """In every type, in any shape, also of rank 0."""
    for shape in ((), (1,), (3, 5)):
        memory = poison(ELEMENT_TYPES[name], shape)
        assert (memory.dtype, memory.shape) == (ELEMENT_TYPES[name].dtype, shape)
        assert np.isnan(memory.astype(np.float64)).all()


def test_untouched_memory_of_i32_is_no_sum_of_products():
    """Beyond 2**17 products of the largest magnitude, and no other value a kernel writes by habit."""
    memory = poison(ELEMENT_TYPES["i32"], (2, 2))
    assert memory.dtype == np.int32 and np.unique(memory).tolist() == [-(2**31) + 1]
    assert abs(int(memory[0, 0])) > 128 * 128 * (2**17 - 1)


# -- the null compiler -----------------------------------------------------------------------------


def test_a_dispatch_without_a_rule_is_compiled_as_it_was_asked_for():
    """What was applied is what was asked for, in the words of the attribute."""
    built = NullCompiler().build(request_of(DEFAULT, TILED))
    assert {o.state for o in built.outcomes.values()} == {State.COMPILED}
    assert built.outcomes[TILED.name].applied.startswith("#iree_cpu.lowering_config<distribution = [4, 6, 0]")
    assert built.outcomes[DEFAULT.name].applied == "the null compiler's choice"


def test_only_what_was_applied_is_in_the_vmfb():
    """A dispatch that was not applied cannot be run by mistake."""
    built = NullCompiler((Rule("*_2x2x2", not_applied=True),)).build(request_of(DEFAULT, TILED))
    assert built.outcomes[TILED.name].state is State.NOT_APPLIED
    assert list(json.loads(built.verify)["functions"]) == [DEFAULT.name]


def test_without_any_applied_dispatch_there_is_no_vmfb():
    """Both files are empty."""
    built = NullCompiler((Rule("*", not_applied=True),)).build(request_of(DEFAULT, TILED))
    assert (built.verify, built.profile) == (b"", b"")


def test_a_dispatch_that_does_not_compile_fails_its_module_and_is_named():
    """As a compiler does it: one error, one culprit."""
    with pytest.raises(BuildError, match="no such tile") as caught:
        NullCompiler((Rule("*_2x2x2", not_compiled="no such tile"),)).build(request_of(DEFAULT, TILED))
    assert caught.value.culprits == (TILED.name,)


def test_the_first_rule_that_matches_counts():
    """The order of the file decides."""
    rules = (Rule("*_default", time_ms=1.0), Rule("*", time_ms=2.0))
    functions = json.loads(NullCompiler(rules).build(request_of(DEFAULT, TILED)).verify)["functions"]
    assert [functions[d.name]["time_ms"] for d in (DEFAULT, TILED)] == [1.0, 2.0]


def test_the_revision_changes_with_the_rules():
    """Another file of faults is another compiler: nothing that it compiled is up to date."""
    compilers = [NullCompiler(), NullCompiler((Rule("*"),)), NullCompiler((Rule("*", time_ms=1.0),))]
    assert len({c.revision for c in compilers}) == 3
    assert NullCompiler((Rule("*"),)).revision == compilers[1].revision


def test_every_flag_is_known():
    """The null compiler refuses none."""
    NullCompiler().check_flags(["--iree-anything", "--at-all"])


# -- files of faults -------------------------------------------------------------------------------


def rules_of(tmp_path, text: str | bytes):
    path = tmp_path / "faults.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_rules(path)


def test_a_file_of_faults_is_read_in_its_order(tmp_path):
    """Patterns, keys and values as they stand."""
    text = '"*_peel": {not_compiled: no such tile}\n"a*": {fault: nan, time_ms: 2}\n"*": {not_applied: true}'
    assert rules_of(tmp_path, text) == (
        Rule("*_peel", not_compiled="no such tile"),
        Rule("a*", fault="nan", time_ms=2),
        Rule("*", not_applied=True),
    )


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_every_fault_can_be_asked_for(tmp_path, fault):
    """By the name under which the device knows it."""
    assert rules_of(tmp_path, yaml.safe_dump({"*": {"fault": fault}})) == (Rule("*", fault=fault),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'*': {fault: nans}", r"'\*': unknown fault 'nans'"),
        ("'*': {falt: nan}", r"'\*': unknown key 'falt'"),
        ("'*': {1: nan}", r"'\*': unknown key 1"),
        ("'*': nan", r"'\*': expected keys and values, but got 'nan'"),
        ("- nan", r"expected patterns with faults, but got \['nan'\]"),
        ("", "expected patterns with faults, but got None"),
        ("{", "is not valid YAML: "),
        (b"\xff\xfe\xff", "is not UTF-8 text: byte 0 is 0xff"),
        (
            "a: &a [1]\nb: *a",
            r"aliases such as \*a are not supported: write the value out \(line 2, column 4\)",
        ),
        ("'*': {fault: null}", r"'\*': unknown fault None"),
        ("'*': {fault: [nan]}", r"'\*': unknown fault \['nan'\]"),
        ("'*': {not_compiled: true}", r"'\*': not_compiled must be a reason, but got True"),
        ("'*': {not_applied: 1}", r"'\*': not_applied must be true or false, but got 1"),
        ("'*': {time_ms: .nan}", r"'\*'.*time_ms"),
        ("'*': {time_ms: fast}", r"'\*'.*time_ms"),
        ("'*': {time_ms: -1}", r"'\*'.*time_ms"),
    ],
)
def test_a_malformed_file_is_refused_by_rule_and_key(tmp_path, text, message):
    """One sentence that names the file and the place."""
    with pytest.raises(UsageError, match=message) as caught:
        rules_of(tmp_path, text)
    assert "faults.yaml" in caught.value.message


@pytest.mark.parametrize(("text", "near"), [("'*': {fault: nans}", "nan"), ("'*': {tme_ms: 1}", "time_ms")])
def test_a_slip_of_the_pen_is_answered_by_the_nearest_name(tmp_path, text, near):
    """The hint names it."""
    with pytest.raises(UsageError) as caught:
        rules_of(tmp_path, text)
    assert f"did you mean {near!r}?" in caught.value.hint


def test_a_missing_file_of_faults_is_refused(tmp_path):
    """With its path."""
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.yaml: No such file"):
        load_rules(tmp_path / "nowhere.yaml")


def test_the_target_names_its_file_of_faults(tmp_path):
    """`null:FILE` compiles with the rules of FILE, `null` with none."""
    (tmp_path / "f.yaml").write_text("'*': {time_ms: 3}")
    assert compiler_for(parse_target(f"null:{tmp_path}/f.yaml")) == NullCompiler((Rule("*", time_ms=3),))
    assert compiler_for(parse_target("null")) == NullCompiler()
