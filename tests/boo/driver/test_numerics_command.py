"""`dispatch-profiler numerics`: a verdict for each command, on the console, as CSV and as JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from launch_helpers import PlainSignature, TorchLaunchable

from dispatch_profiler.__main__ import main as program
from dispatch_profiler.boo.driver.numerics import cli
from dispatch_profiler.boo.driver.numerics.cli import COLUMNS
from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.errors import ToolError
from dispatch_profiler.workloads.miopen import miopen_operations

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("without_gpu")

CONV = "conv -n 1 -c 2 -H 5 -W 4 -k 3 -y 3 -x 3"


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are launched by torch: with 3 images as IREE with twice the result, with 4 images not at all."""

    def parse(command: str) -> tuple[PlainSignature, ...]:
        return tuple(
            PlainSignature(each, f"{command} ({n})") for n, each in enumerate(miopen_operations(command))
        )

    def launchable(signature: PlainSignature) -> TorchLaunchable:
        images = signature.operation.convolution.batch
        if images == 4:
            raise ToolError("does not compile")
        return TorchLaunchable(signature, 2.0 if images == 3 else 1.0)

    monkeypatch.setattr(BooOpRegistry, "parse_commands", staticmethod(parse))
    monkeypatch.setattr("dispatch_profiler.boo.driver.launch.get_launchable", launchable)
    monkeypatch.setattr(cli, "error_bound", lambda *_: None)


def test_the_verdict_of_each_command_is_printed(capsys):
    Path("commands.txt").write_text(f"{CONV} -t 1\n{CONV} -F 6\n")

    assert program(["numerics", "commands.txt", "--min-samples=1"]) == 0

    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line for line in lines if line.startswith("conv")] == [
        CONV,
        f"{CONV} -F 6 (0)",
        f"{CONV} -F 6 (1)",
    ]
    assert lines[1].startswith(">>> iree:  errors mean=") and "of its bound) in " in lines[1]
    assert lines[2].startswith(">>> torch: errors mean=")
    assert lines[3] == ">>> neither deviates"
    assert printed.err == "3 commands, by deviating side: 3 neither\n"


def test_a_kernel_that_deviates_and_lines_that_fail_do_not_end_the_run(capsys):
    Path("commands.txt").write_text(f"{CONV} -n 3\nconv -n x\n{CONV} -n 4\n{CONV}\n")

    assert program(["numerics", "commands.txt", "-o", "found.csv"]) == 1

    printed = capsys.readouterr()
    assert ">>> iree: result: " in printed.out
    assert "line 2: conv -n x: " in printed.err
    assert f"line 3: {CONV} -n 4: does not compile" in printed.err
    assert "4 commands, by deviating side: 1 iree, 2 failed, 1 neither" in printed.err
    with Path("found.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["deviates"] for row in rows] == ["iree", "", "", "neither"]
    assert "exceed their error bound" in rows[0]["reason"]
    assert float(rows[0]["iree worst_part"]) > 1.0 >= float(rows[0]["torch worst_part"])
    assert rows[2]["reason"] == "does not compile"


def test_the_statistics_are_json_too():
    Path("commands.txt").write_text(f"{CONV}\n")

    assert program(["numerics", "commands.txt", "--output=found.json", "--seed=7"]) == 0

    (row,) = json.loads(Path("found.json").read_text())
    assert (row["arguments"], row["result"], row["deviates"], row["reason"]) == (
        CONV,
        "result",
        "neither",
        "",
    )
    assert row["elements"] == 32 * 18  # drawn as often as is allowed
    assert row["iree stddev"] == row["torch stddev"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["missing.txt"], "cannot read missing.txt"),
        (["commands.txt", "-o", "found.txt"], "found.txt is neither .csv nor .json"),
        (["commands.txt", "--min-samples=0"], "expected a whole number of at least 1"),
        (["commands.txt", "--seed=-1"], "expected a whole number such as 0, but got '-1'"),
        (["commands.txt", "--device=local-task"], "'local-task' is not supported"),
    ],
)
def test_an_invalid_request_runs_nothing(arguments, reason, capsys):
    Path("commands.txt").write_text(f"{CONV}\n")

    assert program(["numerics", *arguments]) == 2

    printed = capsys.readouterr()
    assert reason in printed.err and not printed.out
