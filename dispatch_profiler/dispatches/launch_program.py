"""The commands of a CUDA device in a call of a compiled function, in order: a program can launch them itself.

It lies beside the vmfb that it was read from, as text. The kernels' code is not repeated: it is a part of the vmfb.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text, whole, wholes

#: Limits of CUDA: workgroups along x, along y and z, threads of a workgroup, and bytes of shared memory.
_MOST_X = 2**31 - 1
_MOST_YZ = 2**16 - 1
_MOST_THREADS = 1024
_MOST_SHARED = 2**18
#: Far above any program, so that a damaged program cannot keep a process busy.
_MOST_COMMANDS = 4096
_MOST_TRANSIENT = 2**44


@dataclass(frozen=True)
class Span:
    """`length` bytes of a buffer, from `offset`. Arguments are the first buffers, temporary ones follow."""

    buffer: int
    offset: int
    length: int


@dataclass(frozen=True)
class KernelCode:
    """A kernel: its name in `LaunchProgram.images[image]`, the threads of a workgroup, and its dynamic shared memory."""

    image: int
    entry: str
    block: tuple[int, int, int]
    shared_bytes: int


@dataclass(frozen=True)
class Run:
    """Run a kernel on `grid` workgroups. Its parameters are the addresses of `bindings`, then 32-bit `constants`."""

    kernel: int
    grid: tuple[int, int, int]
    bindings: tuple[Span, ...]
    constants: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fill:
    """Repeat `pattern`, of `width` bytes, in all of `target`."""

    target: Span
    pattern: int
    width: int


@dataclass(frozen=True)
class Copy:
    """Copy bytes between spans of the same length."""

    source: Span
    target: Span


Command = Run | Fill | Copy


@dataclass(frozen=True)
class LaunchProgram:
    """The commands of one call, each of which begins when the one before it has ended.

    `images` are PTX modules, as (offset, length) in the vmfb. `arguments` has the least number of bytes of each
    operand, then of each result, which the caller allocates, too. `transients` has the bytes of each temporary buffer;
    their contents are undefined at the beginning.
    """

    images: tuple[tuple[int, int], ...]
    kernels: tuple[KernelCode, ...]
    arguments: tuple[int, ...]
    transients: tuple[int, ...]
    commands: tuple[Command, ...]

    def to_text(self) -> str:
        """See `read_program`."""
        return json.dumps(
            {
                "images": [number for image in self.images for number in image],
                "kernels": [
                    {
                        "image": each.image,
                        "entry": each.entry,
                        "block": each.block,
                        "shared": each.shared_bytes,
                    }
                    for each in self.kernels
                ],
                "arguments": self.arguments,
                "transients": self.transients,
                "commands": [_row(each) for each in self.commands],
            }
        )


def no_program(reason: str) -> str:
    """The text in place of the program of a function without one."""
    return json.dumps({"reason": reason})


def read_program(document: str, vmfb: bytes) -> LaunchProgram:
    """The program of `vmfb`. Raises UsageError, with the reason, if it is missing or damaged."""
    if not document:
        raise UsageError("it was compiled without a launch program")
    try:
        row = mapping(parse_json(document))
        if "reason" in row:
            raise UsageError(text(row, "reason"))
        return _checked(row, len(vmfb))
    except FieldError as error:
        raise UsageError(f"its launch program is damaged: {error}") from error


def _checked(row: Mapping[str, Any], size: int) -> LaunchProgram:
    images = _images(row, size)
    sizes = wholes(row, "arguments"), wholes(row, "transients", least=1)
    if sum(sizes[1]) > _MOST_TRANSIENT:
        raise FieldError(f"transients: more than {_MOST_TRANSIENT} bytes")
    kernels = tuple(_kernel(each, len(images)) for each in rows(row, "kernels"))
    listed = rows(row, "commands")
    if len(listed) > _MOST_COMMANDS:
        raise FieldError(f"commands: more than {_MOST_COMMANDS}")
    buffers = (*sizes[0], *sizes[1])
    commands = tuple(_command(each, buffers, len(kernels)) for each in listed)
    return LaunchProgram(images, kernels, *sizes, commands)


def _images(row: Mapping[str, Any], size: int) -> tuple[tuple[int, int], ...]:
    numbers = wholes(row, "images")
    images = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    if len(numbers) % 2 or any(offset + length > size for offset, length in images):
        raise FieldError("images: outside the vmfb")
    return images


def _row(command: Command) -> dict[str, Any]:
    if isinstance(command, Run):
        bindings = [number for span in command.bindings for number in _numbers(span)]
        return {
            "kernel": command.kernel,
            "grid": command.grid,
            "spans": bindings,
            "constants": command.constants,
        }
    if isinstance(command, Fill):
        return {"spans": _numbers(command.target), "pattern": command.pattern, "width": command.width}
    return {"spans": [*_numbers(command.source), *_numbers(command.target)]}


def _command(row: Mapping[str, Any], buffers: Sequence[int], kernels: int) -> Command:
    spans = _spans(row, buffers)
    if "kernel" in row:
        kernel = whole(row, "kernel", most=kernels - 1)
        constants = wholes(row, "constants")
        if any(each >= 2**32 for each in constants):
            raise FieldError("constants: expected numbers of 32 bits")
        return Run(kernel, _three(row, "grid", (_MOST_X, _MOST_YZ, _MOST_YZ)), spans, constants)
    if "pattern" in row:
        width = whole(row, "width", least=1, most=4)
        if (
            len(spans) != 1
            or width == 3
            or any(number % width for number in (spans[0].offset, spans[0].length))
        ):
            raise FieldError("spans: expected one of whole patterns")
        return Fill(spans[0], whole(row, "pattern", most=2 ** (8 * width) - 1), width)
    if len(spans) != 2 or spans[0].length != spans[1].length:
        raise FieldError("spans: expected two of the same length")
    return Copy(*spans)


def _spans(row: Mapping[str, Any], buffers: Sequence[int]) -> tuple[Span, ...]:
    numbers = wholes(row, "spans")
    if len(numbers) % 3:
        raise FieldError("spans: expected three numbers each")
    spans = tuple(Span(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))
    for span in spans:
        if span.buffer >= len(buffers) or span.offset + span.length > buffers[span.buffer]:
            raise FieldError(f"spans: {span} is outside its buffer")
    return spans


def _kernel(row: Mapping[str, Any], images: int) -> KernelCode:
    block = _three(row, "block", (_MOST_THREADS,) * 3)
    if block[0] * block[1] * block[2] > _MOST_THREADS:
        raise FieldError(f"block: more than {_MOST_THREADS} threads")
    shared = whole(row, "shared", most=_MOST_SHARED)
    return KernelCode(whole(row, "image", most=images - 1), text(row, "entry"), block, shared)


def _three(row: Mapping[str, Any], name: str, most: tuple[int, int, int]) -> tuple[int, int, int]:
    numbers = wholes(row, name, least=1)
    if len(numbers) != 3 or any(number > limit for number, limit in zip(numbers, most, strict=True)):
        raise FieldError(f"{name}: expected three numbers, at most {most}")
    return numbers[0], numbers[1], numbers[2]


def _numbers(span: Span) -> list[int]:
    return [span.buffer, span.offset, span.length]
