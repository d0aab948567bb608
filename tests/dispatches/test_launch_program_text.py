"""Launch programs as text beside a vmfb, which another program may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.dispatches.launch_program import (
    Copy,
    Fill,
    KernelCode,
    LaunchProgram,
    Run,
    Span,
    no_program,
    read_program,
)
from dispatch_profiler.errors import UsageError

VMFB = bytes(500)
PROGRAM = LaunchProgram(
    images=((100, 50), (300, 200)),
    kernels=(KernelCode(0, "first", (32, 2, 1), 0), KernelCode(1, "second", (256, 1, 1), 49152)),
    arguments=(1024, 256),
    transients=(512,),
    commands=(
        Fill(Span(2, 0, 512), 0, 1),
        Run(0, (7, 1, 1), (Span(0, 0, 1024), Span(2, 128, 64)), (3, 2**32 - 1)),
        Copy(Span(2, 128, 64), Span(1, 192, 64)),
    ),
)


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(PROGRAM.to_text()), **changes})


def commands(**changes: Any) -> list[dict[str, Any]]:
    """The commands with a change of those that have such a field already."""
    found = json.loads(PROGRAM.to_text())["commands"]
    return [{**each, **{key: value for key, value in changes.items() if key in each}} for each in found]


def kernels(**changes: Any) -> list[dict[str, Any]]:
    return [{**each, **changes} for each in json.loads(PROGRAM.to_text())["kernels"]]


def test_a_program_is_read_as_it_was_written():
    assert read_program(PROGRAM.to_text(), VMFB) == PROGRAM


def test_the_reason_for_a_missing_program_is_in_the_error():
    with pytest.raises(UsageError, match="a size is not constant"):
        read_program(no_program("a size is not constant"), VMFB)
    with pytest.raises(UsageError, match="compiled without a launch program"):
        read_program("", VMFB)


@pytest.mark.parametrize(
    ("damaged", "field"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ("[" * 100_000, "JSON"),
        (document(images=[100, 50, 300, 201]), "images"),
        (document(images=[100, 50, 300]), "images"),
        (document(images=[-1, 50, 300, 200]), "images"),
        (document(kernels=kernels(image=2)), "image"),
        (document(kernels=kernels(block=[1024, 2, 1])), "block"),
        (document(kernels=kernels(block=[0, 1, 1])), "block"),
        (document(kernels=kernels(block=[32, 1])), "block"),
        (document(kernels=kernels(shared=2**18 + 1)), "shared"),
        (document(kernels=kernels(entry=5)), "entry"),
        (document(arguments=[1024, 100]), "spans"),
        (document(arguments=[1024, "256"]), "arguments"),
        (document(transients=[511]), "spans"),
        (document(transients=[0]), "transients"),
        (document(transients=[2**50]), "transients"),
        (document(commands=commands(kernel=2)), "kernel"),
        (document(commands=commands(kernel=True)), "kernel"),
        (document(commands=commands(grid=[1, 65536, 1])), "grid"),
        (document(commands=commands(grid=[1.5, 1, 1])), "grid"),
        (document(commands=commands(constants=[2**32])), "constants"),
        (document(commands=commands(constants=[-1])), "constants"),
        (document(commands=commands(width=3)), "whole patterns"),
        (document(commands=commands(width=8)), "width"),
        (document(commands=commands(pattern=256)), "pattern"),
        (document(commands=commands(spans=[0, 0])), "spans"),
        (document(commands=commands(spans=[3, 0, 1])), "spans"),
        (document(commands=commands(spans=[0, 1000, 25])), "spans"),
        (document(commands=[{"spans": [0, 0, 8, 1, 0, 4]}]), "spans"),
        (document(commands=[{"spans": []}] * 5000), "commands"),
        (document(commands=[7]), "commands"),
    ],
)
def test_damaged_programs_are_rejected_with_the_field(damaged: str, field: str):
    with pytest.raises(UsageError, match=f"its launch program is damaged: .*{field}"):
        read_program(damaged, VMFB)


@given(st.data())
def test_a_damaged_program_is_rejected_or_stays_within_its_buffers(data: st.DataObject):
    row = json.loads(PROGRAM.to_text())
    key = data.draw(st.sampled_from(sorted(row)))
    leaves = st.one_of(
        st.integers(-(2**40), 2**40), st.none(), st.booleans(), st.text(max_size=3), st.floats()
    )
    row[key] = data.draw(
        st.recursive(
            leaves,
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "spans",
                            "kernel",
                            "pattern",
                            "width",
                            "grid",
                            "image",
                            "entry",
                            "block",
                            "shared",
                            "constants",
                        ]
                    ),
                    inner,
                )
            ),
            max_leaves=12,
        )
    )
    try:
        found = read_program(json.dumps(row), VMFB)
    except UsageError:
        return
    sizes = (*found.arguments, *found.transients)
    for command in found.commands:
        spans = command.bindings if isinstance(command, Run) else [command.target]
        spans = [*spans, command.source] if isinstance(command, Copy) else spans
        assert all(span.offset + span.length <= sizes[span.buffer] for span in spans)
