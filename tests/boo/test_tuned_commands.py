"""Commands of MIOpenDriver from start to end on this CPU: tuned, compared, and launched with the library that results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.library import Library

pytestmark = [pytest.mark.slow, pytest.mark.alone]

COMMANDS = (
    "conv -n 1 -c 16 -H 14 -W 14 -k 32 -y 3 -x 3 -p 1 -q 1 -b 1 -F 1 --in_layout NHWC --fil_layout NHWC --out_layout NHWC",
    "layernorm -X 4x64x256 -o 2 -m 1 -F 1",
    "layernorm -X 4x64x256 -o 2 -m 1 -F 4",
    "gemm -m 64 -k 128 -n 96 -u 1 -F 1",
)
SIGNATURES = [signature for each in COMMANDS for signature in BooOpRegistry.parse_commands(each)]


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `dispatch-profiler ARGUMENTS` printed; it must succeed."""
    command = [sys.executable, "-m", "dispatch_profiler", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done


def launched(library: str) -> dict[str, str]:
    """Name of a signature -> the configuration that its launch used, with `library` and results that are verified."""
    pytest.importorskip("torch")
    done = program(
        "boo", "--device=cpu", "--commands-file=commands.txt", "--verify-numerics",
        BOO_TUNING_SPEC_PATH=library, TURBINE_DEBUG="log_level=DEBUG",
    )  # fmt: skip
    assert done.stdout.count(">>> numerics: ") == len(SIGNATURES)
    assert "deviates" not in done.stdout.replace("neither deviates", "")
    return dict(re.findall(r"^(\S+): (tile_config_.*) for llvm-cpu$", done.stderr, flags=re.M))


def test_commands_are_tuned_and_launched_with_what_was_found():
    Path("commands.txt").write_text("".join(f"{each}\n" for each in COMMANDS))

    program("tune", "commands.txt", "--evaluations=3", "--seed=1", "--output-dir=tuned")

    library = Library.load(Path("tuned/final"))
    tuned = {
        each.func_name: f"tile_config_tuned ({entry.dispatch.configuration.name})"
        for each in SIGNATURES
        if (entry := library.find(each.operation)) is not None
    }
    # A microkernel is among the first configurations of the convolution, far faster than the default.
    assert SIGNATURES[0].func_name in tuned
    assert len(tuned) == len(library.entries)
    untuned = launched("")
    assert {*untuned} == {each.func_name for each in SIGNATURES}
    assert not [each for each in untuned.values() if each.startswith("tile_config_tuned")]
    assert launched("tuned/final") == untuned | tuned
    # Both kernels of an operation are kept, under one name.
    listed = program("cache", "list").stdout
    assert [listed.count(f"{each.func_name} ") for each in SIGNATURES] == [
        2 if each.func_name in tuned else 1 for each in SIGNATURES
    ]

    program("generate", "--workload=commands.txt", "--default-config=only")
    program("compile", "--library=tuned/final")
    program("profile", "--output=data.csv", "--benchmark-repetitions=5")
    compared = program(
        "compare", "data.jsonl", "data.jsonl", "--by=operation",
        "--base-dispatches=*_default", "--new-dispatches=*_tuned", "--threshold=5%",
    )  # fmt: skip
    for each in SIGNATURES:
        assert each.operation.name in compared.stdout
