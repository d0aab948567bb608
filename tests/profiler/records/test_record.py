"""Records: a verdict with its reason, and no speed for what is wrong."""

from __future__ import annotations

import shlex

import pytest

from dispatch_profiler.configurations import CpuTiles, Default, TritonTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, kernel_name

PROVENANCE = Provenance("null", "null", "compiler 1, runtime 2", 3)
RECORD = Record(Dispatch(Matmul(4, 6, 8), Default()), PROVENANCE, Verdict.SUCCESS, "", Measurement((1.0,), 1))


def test_verdicts_are_spelled_as_the_document_and_the_reports_spell_them():
    """These nine, and no other."""
    assert [v.value for v in Verdict] == [
        "SUCCESS", "FAILED", "Not verified", "Not applied", "Not compiled", "Not supported",
        "Implausible", "Crashed", "Timed out",
    ]  # fmt: skip


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_three_verdicts_are_no_failures(verdict):
    """Every other verdict makes the exit status 1; an operation that a library lacks does not."""
    assert verdict.is_failure is (verdict.value not in ("SUCCESS", "Not verified", "Not supported"))


def test_a_failure_takes_the_measurement_with_it():
    """A wrong kernel has no speed; everything else stays."""
    failed = RECORD.failed(Verdict.FAILED, "1 of 24 elements")
    assert (failed.verdict, failed.reason, failed.measurement) == (Verdict.FAILED, "1 of 24 elements", None)
    assert (failed.dispatch, failed.provenance) == (RECORD.dispatch, RECORD.provenance)
    assert RECORD.measurement is not None


def test_what_should_have_been_verified_and_was_not_is_a_failure():
    """Not verified with a reason is a failure; without one, verification was not requested."""
    assert not RECORD.is_failure
    assert not Record(RECORD.dispatch, PROVENANCE, Verdict.NOT_VERIFIED).is_failure
    assert Record(RECORD.dispatch, PROVENANCE, Verdict.NOT_VERIFIED, "no memory").is_failure
    assert RECORD.failed(Verdict.CRASHED, "SIGSEGV").is_failure


def test_the_arguments_are_those_of_the_document():
    """As they would be given on a command line, split-k last."""
    assert RECORD.arguments_text() == (
        "--batch_count=1 --m=4 --n=6 --k=8 --lhs=f32t --rhs=f32t --result=f32t"
        " --split_k_mode=N/A --split_k_slices=N/A"
    )


def test_the_arguments_may_be_pasted_into_a_shell():
    """A shell would reject the parentheses of a clamp."""
    operation = Matmul(4, 6, 8, epilogue=Epilogue.parse("bias+clamp(-1,1)"))
    text = Record(Dispatch(operation, Default()), PROVENANCE, Verdict.SUCCESS).arguments_text()
    assert " '--epilogue=bias+clamp(-1,1)' " in text
    assert "--epilogue=bias+clamp(-1,1)" in shlex.split(text)


def test_a_split_is_named_with_its_slices():
    """A configuration that splits k says so in the arguments."""
    record = Record(Dispatch(Matmul(4, 6, 8), Default(4)), PROVENANCE, Verdict.SUCCESS)
    assert record.arguments_text().endswith("--split_k_mode=parallel --split_k_slices=4")


def test_a_convolution_has_no_split():
    """Arguments that do not apply are left out."""
    tiles = CpuTiles((1, 1, 4, 4), (1, 1, 4, 4, 1, 1, 1))
    record = Record(Dispatch(Conv2d(1, 8, 8, 4, 4, 3, 3), tiles), PROVENANCE, Verdict.SUCCESS)
    assert "split_k" not in record.arguments_text()
    assert record.op_kind == "OperationKind.Conv2d"


def test_a_kernel_is_named_with_whose_it_is_where_its_name_does_not_say():
    """IREE's, a library's, and another provider's default."""
    assert kernel_name("tile_config_default", "IREE Codegen") == "tile_config_default"
    assert kernel_name("numpy_matmul", "numpy") == "numpy_matmul"
    assert kernel_name("tile_config_default", "torch") == "tile_config_default (torch)"


def test_a_record_is_its_configurations_kernel_unless_told_otherwise():
    """IREE's own, Triton's, or a user's; a library says so itself."""
    here = Provenance("cuda", "cuda:sm_90", "3.13.0", 0)
    triton = Dispatch(Matmul(256, 128, 64), TritonTiles(tile=(64, 64, 32)))
    plain = Dispatch(Matmul(256, 128, 64), Default())

    assert Record(plain, here, Verdict.SUCCESS).provider == "IREE Codegen"
    assert Record(triton, here, Verdict.SUCCESS).provider == "Triton"
    assert Record(triton, here, Verdict.SUCCESS, provider="torch").provider == "torch"
    assert kernel_name(triton.configuration.name, "Triton") == triton.configuration.name
