"""Files of commands, and the flags that say how to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.boo.driver.registry import CommandLine, Timing, read_commands, split_timing
from dispatch_profiler.errors import UsageError, WorkloadError


def test_a_file_has_a_command_on_each_line():
    Path("commands.txt").write_text("# a comment\n\nconv -n 1\n  conv\t-n 2  \n#conv -n 3\n")

    assert read_commands(Path("commands.txt")) == [CommandLine(3, "conv -n 1"), CommandLine(4, "conv\t-n 2")]


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"conv \xff\xfe\n"])
def test_a_file_without_commands_is_rejected(content: bytes):
    Path("commands.txt").write_bytes(content)

    with pytest.raises(UsageError, match=r"commands\.txt"):
        read_commands(Path("commands.txt"))


def test_the_sample_commands_are_those_of_the_package_or_ones_own():
    path = Path("sample_commands.txt")

    assert len(read_commands(path)) > 10
    path.write_text("conv -n 1\n")
    assert read_commands(path) == [CommandLine(1, "conv -n 1")]


def test_the_place_of_a_command_is_its_line():
    assert CommandLine(3, "conv").place == "line 3: "
    assert CommandLine(0, "conv").place == ""


@pytest.mark.parametrize(
    ("command", "text", "timing"),
    [
        ("conv -n 1", "conv -n 1", Timing(True, 7)),
        ("conv -n 1 -t 1 --iter 100", "conv -n 1 --iter 100", Timing(True, 100)),
        ("conv -t 0 -n 1", "conv -n 1", Timing(False, 7)),
        ("conv --time=0 --iter=3", "conv --iter=3", Timing(False, 3)),
        ("conv -i 9 --time 1 -b 1", "conv -i 9 -b 1", Timing(True, 9)),
        ("conv -i 0", "conv -i 0", Timing(True, 1)),
    ],
)
def test_timing_flags_are_read_and_t_is_removed(command: str, text: str, timing: Timing):
    """As in the transcripts of the documents, which repeat the command without `-t 1` and with `--iter 100`."""
    assert split_timing(command.split(), Timing(True, 7)) == (text, timing)


@pytest.mark.parametrize(
    "flag", ["-t", "-t 2", "--time x", "--iter -1", "--iter=", "-i 1.5", "-i 1000001", "--iter ²"]
)
def test_an_invalid_timing_flag_is_rejected(flag: str):
    with pytest.raises(WorkloadError, match=flag.split()[0].split("=")[0]):
        split_timing(["conv", *flag.split()], Timing())
