"""The console block of the IREE dispatch profiler, field for field, and the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, stored
from dispatch_profiler.profiler.records.speedup import speed_ratio
from dispatch_profiler.profiler.report.console import block, gflops_text, runtime_text, table
from dispatch_profiler.profiler.statistics.comparison import Ratio

#: As in the IREE dispatch profiler's documentation, without trailing spaces.
DOCUMENT = """\
----------------------------------------------------------------
Dispatch      : matmul_3456x1024x2048_f16t_f16t_f16t_tile_config_128x128_32x5_tensorcore_mmasync
Provider      : IREE Codegen
OpKind        : OperationKind.Matmul
Operation     : matmul_3456x1024x2048_f16t_f16t_f16t
Configuration : tile_config_128x128_32x5_tensorcore_mmasync
Arguments     : --batch_count=1 --m=3456 --n=1024 --k=2048 --lhs=f16t --rhs=f16t --result=f16t
                --split_k_mode=N/A --split_k_slices=N/A
Verification  : SUCCESS
Runtime(ms)   : 0.062
GFLOPs        : 233798.62"""

F16 = ElementTypes("f16", "f16", "f16")
PROVENANCE = Provenance("local-task", "llvm-cpu", "compiler 1, runtime 2", 7)


@dataclass(frozen=True)
class Named(Configuration):
    """A configuration with nothing but a name."""

    kind: ClassVar[str] = "named"
    label: str = "tile_config_128x128_32x5_tensorcore_mmasync"
    split_k: int = 1

    @property
    def name(self) -> str:
        return self.label

    def invalid_reason(self, operation, limits):
        return None


def record_of(
    operation: Operation,
    *samples: float,
    configuration: Configuration = Default(),
    verdict: Verdict = Verdict.SUCCESS,
    reason: str = "",
) -> Record:
    measurement = Measurement(samples, 10) if samples else None
    return Record(Dispatch(operation, configuration), PROVENANCE, verdict, reason, measurement)


def lines_of(record: Record) -> dict[str, str]:
    """label -> value; of a value that goes on, the first line."""
    lines = (line.partition(": ") for line in block(record).splitlines() if line[14:16] == ": ")
    return {label.strip(): value for label, _, value in lines}


# -- the block -------------------------------------------------------------------------------------


def test_the_block_is_that_of_the_document():
    """Rule, labels, order, wrapping and digits: character by character."""
    record = record_of(Matmul(3456, 1024, 2048, F16), 0.062, configuration=Named())
    assert block(record) == DOCUMENT


def test_the_documents_unverified_block_differs_in_one_field():
    """Not verified stands where the verdict stands."""
    record = record_of(
        Matmul(3456, 1024, 2048, F16), 0.062, configuration=Named(), verdict=Verdict.NOT_VERIFIED
    )
    assert block(record) == DOCUMENT.replace("SUCCESS", "Not verified")


@pytest.mark.parametrize(
    ("type_", "milliseconds", "gflops"),
    [("f16", 0.064, "226492.42"), ("f16", 0.103, "140733.15"), ("f32", 0.122, "118815.69")],
)
def test_the_documents_other_figures(type_, milliseconds, gflops):
    """The same runtime gives the same GFLOPs."""
    record = record_of(Matmul(3456, 1024, 2048, ElementTypes(type_, type_, type_)), milliseconds)
    assert (runtime_text(record), gflops_text(record)) == (f"{milliseconds:.3f}", gflops)


@pytest.mark.parametrize(
    ("operation", "label"),
    [
        (Matmul(4, 6, 8), "OperationKind.Matmul"),
        (BatchMatmul(2, 4, 6, 8), "OperationKind.BatchMatmul"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3), "OperationKind.Conv2d"),
    ],
    ids=lambda x: x.kind if isinstance(x, Operation) else None,
)
def test_every_kind_has_the_fields_of_the_document(operation, label):
    """Labels and their order do not depend on the kind."""
    fields = lines_of(record_of(operation, 1.0))
    assert list(fields) == [
        "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
        "Verification", "Runtime(ms)", "GFLOPs",
    ]  # fmt: skip
    assert fields["OpKind"] == label
    assert fields["Dispatch"] == f"{fields['Operation']}_{fields['Configuration']}"


def test_lines_that_go_on_are_indented_to_the_value():
    """Continued arguments begin below the first, and none is cut in two."""
    record = record_of(Conv2d(1, 224, 224, 3, 64, 7, 7, epilogue=Epilogue.parse("bias+relu")), 1.0)
    lines = block(record).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Arguments"))
    last = next(i for i, line in enumerate(lines) if line.startswith("Verification"))
    assert last - first > 1
    assert all(line.startswith(" " * 16 + "--") for line in lines[first + 1 : last])
    assert " ".join(line[16:] for line in lines[first:last]) == record.arguments_text()


def test_a_reason_stands_last_and_is_wrapped_like_arguments():
    """No line beyond 96 columns, no word lost, line breaks become spaces."""
    reason = "the compiler gave\nno answer within 120 s; --timeout sets the limit; " + "and so on " * 20
    lines = block(record_of(Matmul(4, 6, 8), verdict=Verdict.TIMED_OUT, reason=reason)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Reason        : "))
    assert len(lines) - at > 2 and max(map(len, lines[at:])) <= 96
    assert all(line.startswith(" " * 16) for line in lines[at + 1 :])
    assert " ".join(line[16:] for line in lines[at:]) == " ".join(reason.split())


def test_there_is_no_reason_where_nothing_is_wrong():
    """The field is an addition to the IREE dispatch profiler's block, so it is printed only if it is not empty."""
    assert "Reason" not in block(record_of(Matmul(4, 6, 8), 1.0))


def test_what_was_not_measured_says_so():
    """Neither zero nor infinity: words."""
    fields = lines_of(record_of(Matmul(4, 6, 8), verdict=Verdict.FAILED, reason="wrong"))
    assert fields["Runtime(ms)"] == fields["GFLOPs"] == "Not profiled"


# -- digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.062, "0.062"), (1.0, "1.000"), (12.3456, "12.346"), (1234.5, "1234.500"), (0.00081920, "0.0008192")],
)
def test_runtimes_have_three_decimals_or_four_digits(milliseconds, text):
    """As the IREE dispatch profiler prints them; a short one keeps the digits that tell two of them apart."""
    assert runtime_text(record_of(Matmul(4, 6, 8), milliseconds)) == text


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-6, 1e7))
def test_a_runtime_is_a_plain_decimal_that_is_right_to_four_digits(milliseconds):
    """No exponent, and no more rounding than half a unit of the fourth digit."""
    text = runtime_text(record_of(Matmul(4, 6, 8), milliseconds))
    assert text.replace(".", "").isdigit(), text
    assert float(text) == pytest.approx(milliseconds, rel=5.01e-4)


def test_the_runtime_is_the_median():
    """One outlier does not show."""
    assert runtime_text(record_of(Matmul(4, 6, 8), 1.0, 2.0, 90.0)) == "2.000"


def test_a_runtime_of_zero_ends_no_report():
    """A clock that did not move gives a block and a table like any other."""
    record = record_of(Matmul(4, 6, 8), 0.0, 0.0)
    assert "Runtime(ms)   : 0" in block(record)
    assert "tile_config_default" in table([record])


# -- the table -------------------------------------------------------------------------------------

TILES = CpuTiles((64, 128), (8, 32, 4))


def test_the_table_puts_the_fastest_first_and_compares_with_the_default():
    """A configuration that takes half as long is 2.00x, the default itself 1.00x."""
    matmul = Matmul(4, 6, 8)
    slow, fast = record_of(matmul, 2.0), record_of(matmul, 1.0, configuration=TILES)
    rows = table([slow, fast]).splitlines()
    assert rows[0] == matmul.name
    assert rows[1].split() == [
        "Runtime(ms)",
        "GFLOPs",
        "vs",
        "default",
        "%",
        "of",
        "peak",
        "±95%",
        "Verification",
        "Configuration",
    ]
    assert rows[2].split() == ["1.000", "0.0", "2.00x", "~", "-", "-", "SUCCESS", TILES.name]
    assert rows[3].split() == ["2.000", "0.0", "1.00x", "-", "-", "SUCCESS", "tile_config_default"]


@pytest.mark.parametrize(
    ("default", "tiles", "text"),
    [
        # Half the samples of the default are 2 ms, half 1 ms: nothing is known.
        ((1.0, 2.0) * 10, (1.0,) * 20, "1.50x (1.00-2.00) ~"),
        ((2.0,) * 20, (1.0,) * 20, "2.00x (2.00-2.00)"),
        ((300.0,) * 20, (1.0,) * 20, "300.00x (300-300)"),
        ((2.0,), (1.0,), "2.00x ~"),
        ((2.0,) * 20, (0.0, 1.0, 1.0), "2.00x ~"),
    ],
)
def test_a_speed_has_an_interval_and_a_mark_if_it_includes_1(default, tiles, text):
    """From the ends of both sides' intervals; a single sample, or a time of 0, has none."""
    matmul = Matmul(4, 6, 8)
    records = [record_of(matmul, *default), record_of(matmul, *tiles, configuration=TILES)]
    row = next(line for line in table(records).splitlines() if line.endswith(TILES.name))
    assert f" {text}  " in row


def test_a_speed_is_known_no_better_than_the_overhead_of_a_call():
    """2 ms and 1 ms, each less an overhead that may be off by 0.5 ms: 1.5 / 1.5 to 2.5 / 0.5."""
    records = [
        record_of(Matmul(4, 6, 8), *(2.0,) * 20),
        record_of(Matmul(4, 6, 8), *(1.0,) * 20, configuration=TILES),
    ]
    default, tiles = (
        stored(replace(each, measurement=replace(each.measurement, overhead_error_ms=0.5)))
        for each in records
    )

    assert speed_ratio(tiles, default) == Ratio(2.0, 1.0, 5.0)


def test_columns_are_as_wide_as_what_they_hold():
    records = [
        record_of(Matmul(4, 6, 8), *(1.0, 2.0) * 9),
        record_of(Matmul(4, 6, 8), 1.0, 1.1, configuration=TILES),
    ]
    head, *rows = table(records).splitlines()[1:]
    assert {row.index("SUCCESS") for row in rows} == {head.index("Verification")}


def test_an_interrupted_figure_says_so():
    record = record_of(Matmul(4, 6, 8), 1.0, 1.1)
    early = replace(record, measurement=replace(record.measurement, ended_by="interrupted"))
    assert "interrupted: --resume measures it again" in table([early])


def test_the_table_tells_what_part_of_the_machine_is_used():
    """Half the time that the hardware needs at least, doubled: 25 %."""
    rows = table([replace(record_of(Matmul(4, 6, 8), 2.0), limit_ms=0.5)]).splitlines()
    assert rows[2].split()[3] == "25%"


def test_the_peak_of_a_memory_bound_operation_is_that_of_the_memory():
    """A matrix times a vector at the speed of the memory is at 100 %, though far from the FLOP/s."""
    product = Matmul(1024, 1, 1024)
    peaks = Peaks({"f32": 1e12}, 1e9)
    at_memory_speed = 1e3 * product.bytes / 1e9
    assert peaks.limit_ms(product) < at_memory_speed / 100
    record = replace(record_of(product, at_memory_speed), limit_ms=peaks.limit_ms(product), peaks=peaks)
    assert table([record]).splitlines()[2].split()[3] == "100%"


def test_the_table_has_dashes_and_the_reason_where_nothing_was_measured():
    """Failures come last, with their reason below."""
    matmul = Matmul(4, 6, 8)
    failed = record_of(matmul, configuration=TILES, verdict=Verdict.FAILED, reason="all wrong")
    rows = table([failed, record_of(matmul, 2.0)]).splitlines()
    assert rows[3].split() == ["-", "-", "-", "-", "-", "FAILED", TILES.name]
    assert rows[4].strip() == "all wrong"


def test_without_a_default_there_is_nothing_to_compare_with():
    """A dash where the baseline was not measured."""
    rows = table([record_of(Matmul(4, 6, 8), *([1.0] * 6), *([1.5] * 6), configuration=TILES)]).splitlines()
    assert rows[2].split()[2:5] == ["-", "-", "20.0%"]


def test_every_operation_has_a_part_of_its_own():
    """Parts stand in the order of the run, and a default counts for its own operation only."""
    one, two = Matmul(4, 6, 8), Matmul(5, 6, 8)
    text = table([record_of(one, 4.0), record_of(two, 1.0, configuration=TILES)])
    first, second = text.split("\n\n")
    assert first.startswith(one.name) and second.startswith(two.name)
    assert "x " not in second.splitlines()[2].split("SUCCESS")[0]


# -- narrow terminals ------------------------------------------------------------------------------


def narrow(width: int) -> str:
    """A table of two rows, of which one has a reason."""
    matmul = Matmul(4, 6, 8)
    failed = record_of(matmul, 1.0, configuration=TILES).failed(Verdict.FAILED, "1 of 24 elements " * 5)
    return table([record_of(matmul, 2.0), failed], width=width)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_on_a_narrow_terminal_figures_stand_below_each_configuration(width: int):
    lines = narrow(width).splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "tile_config_default 2.000 ms, 0.0 GFLOPs, 1.00x vs default, SUCCESS" in text
    assert f"{TILES.name} FAILED " + "1 of 24 elements " * 5 in text + " "


def test_a_table_that_fits_is_as_in_a_file():
    matmul = Matmul(4, 6, 8)
    records = [record_of(matmul, 2.0), record_of(matmul, 1.0, configuration=TILES)]
    assert table(records, width=120) == table(records)
    assert max(map(len, table(records).splitlines())) <= 120
