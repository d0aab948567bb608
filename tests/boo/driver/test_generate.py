"""`dispatch-profiler boo generate`: the MLIR of a command."""

from __future__ import annotations

import pytest

from dispatch_profiler.boo.driver.driver import main
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, LayerNorm, LayerNormInputBackward


def _mlir(*operations: Conv2d | LayerNorm | LayerNormInputBackward) -> str:
    return "\n".join(render_module(each, [Dispatch(each, Default())]) for each in operations)


def test_the_mlir_of_a_command_is_printed(capsys: pytest.CaptureFixture[str]):
    assert (
        main(
            [
                "generate",
                "conv",
                "-n",
                "1",
                "-c",
                "2",
                "-H",
                "5",
                "-W",
                "4",
                "-k",
                "3",
                "-y",
                "3",
                "-x",
                "3",
                "-p",
                "1",
                "-t",
                "1",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == _mlir(Conv2d(1, 5, 4, 2, 3, 3, 3, padding=(1, 0), layout="nchw"))


def test_each_direction_is_a_function(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "layernorm", "-X", "4x8", "-o", "1", "-F", "0"]) == 0
    assert capsys.readouterr().out == _mlir(
        LayerNorm(4, 8, affine=False), LayerNormInputBackward(4, 8, affine=False)
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("generate", "expected a command"),
        ("generate conv -Q 1", "unknown flag '-Q'"),
        ("generate bnorm -n 1", "the command bnorm is not supported"),
    ],
)
def test_what_is_no_command_is_a_usage_error(given: str, reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(given.split()) == 2
    assert reason in capsys.readouterr().err


def test_help_of_a_command_lists_its_flags(capsys: pytest.CaptureFixture[str]):
    assert main(["gemm", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "-m, --a_h" in shown and "M: rows of A" in shown
