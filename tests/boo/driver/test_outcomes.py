"""Text in the form of the BOO documents, and CSV."""

from __future__ import annotations

import csv
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.boo.driver.runs.outcomes import (
    CsvFile,
    DriverBackend,
    LaunchTimes,
    SignatureOutcome,
    columns,
    described,
    parse_references,
    time_lines,
)
from dispatch_profiler.errors import UsageError

TIMES = LaunchTimes(
    min=85.24, max=371.23, mean=255.28, stddev=92.66, median=250.0, p20=100.0, p80=300.5, samples=100, launches=100
)  # fmt: skip
BOTH = (DriverBackend.BOO, DriverBackend.TORCH)


def test_times_are_printed_as_in_the_documents():
    first, second = time_lines("", TIMES)

    assert first == "min=85.24us max=371.23us mean=255.28us stddev=92.66us"
    assert second == "median=250.00us p20=100.00us p80=300.50us (100 launches)"
    assert time_lines("", replace(TIMES, launches=1, samples=1))[1].endswith("(1 launch)")
    assert time_lines("torch", replace(TIMES, launches=500))[1].startswith("torch: median=250.00us")
    assert time_lines("torch", replace(TIMES, launches=500))[1].endswith("(500 launches in 100 samples)")


def test_results_are_described_as_in_the_documents():
    torch = pytest.importorskip("torch")

    tensor = torch.zeros(128, 24, 48, 384, dtype=torch.bfloat16, device="meta")
    assert described(tensor) == "tensor([...], device='meta', size=(128, 24, 48, 384), dtype=torch.bfloat16)"
    assert described(np.zeros((2, 3), np.float32)) == "array([...], size=(2, 3), dtype=float32)"


def written(outcome: SignatureOutcome) -> dict[str, str]:
    """The row of an outcome."""
    CsvFile(Path("a.csv"), BOTH, has_numerics=True).add(outcome)
    with Path("a.csv").open() as file:
        (row,) = csv.DictReader(file)
    return row


def test_a_row_has_the_documented_columns_for_each_backend():
    row = written(
        SignatureOutcome(
            "conv -n 1",
            {DriverBackend.BOO: TIMES, DriverBackend.TORCH: replace(TIMES, min=7.0)},
            numerics="neither",
            is_timed=True,
        )
    )

    assert row["arguments"] == "conv -n 1"
    assert row["min_time (us)"] == row["iree_boo min"] == "85.240"
    assert [row[f"torch {name}"] for name in ("min", "max", "mean", "stddev", "num_dispatches")] == [
        "7.000", "371.230", "255.280", "92.660", "100",
    ]  # fmt: skip
    assert [row[f"iree_boo {name}"] for name in ("median", "p20", "p80")] == ["250.000", "100.000", "300.500"]
    assert row["iree_boo kernel median"] == "N.A."
    assert (row["numerics"], row["error"]) == ("neither", "")


def test_a_row_without_times_says_why():
    assert set(written(SignatureOutcome("conv")).values()) == {"conv", "untimed", ""}
    row = written(SignatureOutcome("conv", error="no such flag"))
    assert (row["min_time (us)"], row["error"]) == ("N.A.", "no such flag")
    failed = SignatureOutcome(
        "conv", {DriverBackend.BOO: TIMES}, failures={DriverBackend.TORCH: "no kernel"}, is_timed=True
    )
    row = written(failed)
    assert (row["iree_boo min"], row["torch min"], row["error"]) == ("85.240", "N.A.", "torch: no kernel")
    assert failed.has_failed
    other = SignatureOutcome(
        "conv", {DriverBackend.BOO: TIMES}, unsupported={DriverBackend.TORCH: "no kernel"}, is_timed=True
    )
    assert written(other)["error"] == "torch: no kernel"
    assert not other.has_failed


def test_the_file_is_complete_after_each_row():
    file = CsvFile(Path("a.csv"), BOTH, has_numerics=False)
    header = ",".join(columns(BOTH, has_numerics=False))

    assert Path("a.csv").read_text().splitlines() == [header]
    for count in (1, 2):
        file.add(SignatureOutcome("conv"))
        assert len(Path("a.csv").read_text().splitlines()) == 1 + count


def test_a_pipe_gets_each_row_once() -> None:
    """A link to a file stays a link."""
    os.mkfifo("pipe")
    rows: list[str] = []
    reader = threading.Thread(target=lambda: rows.extend(Path("pipe").read_text().splitlines()))
    reader.start()
    Path("link").symlink_to("real.csv")
    for name in ("pipe", "link"):
        with CsvFile(Path(name), BOTH, has_numerics=False) as file:
            file.add(SignatureOutcome("conv"))
            file.add(SignatureOutcome("bnorm"))
    reader.join()
    assert Path("link").is_symlink()
    assert Path("real.csv").read_text().splitlines() == rows
    assert [row.partition(",")[0] for row in rows] == ["arguments", "conv", "bnorm"]


def test_references_are_several_flags_or_a_list():
    both = (DriverBackend.TORCH, DriverBackend.INDUCTOR)

    assert parse_references(["torch", "inductor"]) == parse_references(["torch,inductor", "torch"]) == both


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("troch", "unknown backend 'troch'"),
        ("iree_boo", "unknown backend 'iree_boo'"),
        ("", "unknown backend ''"),
    ],
)
def test_other_references_are_rejected(name: str, reason: str):
    with pytest.raises(UsageError, match=reason) as caught:
        parse_references([name])
    assert "torch, inductor, iree_boo_inductor, iree_boo_legacy" in caught.value.hint
