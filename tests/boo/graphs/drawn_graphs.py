"""Models as data: tensors, lines of Python, and what is returned. So they can be drawn, printed and reduced.

forward(self, x0):
    v0 = functional.conv2d(x0, self.p0)
    v0[:, :1].relu_()
    return v0, {'a': [v0[:, :1]]}
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@dataclass(frozen=True)
class Declared:
    """A tensor that a model has or takes.

    `role` is `input`, `parameter` or `buffer`. `memory` is `rows`, `channels` (channels_last), `padded` (every other
    column of a larger tensor), `transposed`, or the name of an input of which this is a view. `fill` is `normal`,
    `variance` (0.5 to 1.5) or `index` (integers below `limit`); `scale` multiplies the first.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    memory: str = "rows"
    fill: str = "normal"
    scale: float = 1.0
    limit: int = 1
    requires_grad: bool = False


@dataclass(frozen=True)
class Step:
    """A line: `code` with the names of `reads` in its braces gives the values `makes`, or none if it is a statement."""

    code: str
    reads: tuple[str, ...]
    makes: tuple[str, ...] = ()

    def line(self, names: dict[str, str]) -> str:
        """The line, with the names under which the model has its tensors."""
        code = self.code.format(*(names.get(each, each) for each in self.reads))
        return f"{', '.join(self.makes)} = {code}" if self.makes else code


@dataclass(frozen=True)
class DrawnGraph:
    """A model, and how it is called. `results` is a nested tuple, list or dict of names."""

    seed: int
    type: str
    mode: str
    tensors: tuple[Declared, ...]
    steps: tuple[Step, ...]
    results: Any

    @property
    def inputs(self) -> tuple[Declared, ...]:
        return tuple(each for each in self.tensors if each.role == "input")

    @property
    def source(self) -> str:
        """The definition of `forward`."""
        names = {each.name: f"self.{each.name}" for each in self.tensors if each.role != "input"}
        lines = [step.line(names) for step in self.steps]
        returned = _text(self.results, names)
        arguments = ", ".join(["self", *(each.name for each in self.inputs)])
        return "\n    ".join([f"def forward({arguments}):", *lines, f"return {returned}"]) + "\n"

    def __str__(self) -> str:
        declared = "".join(f"# {each}\n" for each in self.tensors)
        return f"# seed {self.seed}, {self.type}, {self.mode}\n{declared}{self.source}"

    def model(self) -> nn.Module:
        """The model, with the parameters and buffers that its seed gives, in its type."""
        made = Drawn()
        for each in self.tensors:
            if each.role == "parameter":
                made.register_parameter(each.name, nn.Parameter(self.tensor(each)))
            elif each.role == "buffer":
                made.register_buffer(each.name, self.tensor(each))
        name = f"<graph {self.seed}.{len(self.steps)}>"
        linecache.cache[name] = len(self.source), None, self.source.splitlines(keepends=True), name
        scope = {"torch": torch, "functional": functional}
        exec(compile(self.source, name, "exec"), scope)
        made.__class__ = type("Drawn", (Drawn,), {"forward": scope["forward"]})
        return made.train()

    def arguments(self, *, type_: torch.dtype | None = None, number: int = 0) -> list[torch.Tensor]:
        """Inputs, new in each call; those of another `number` have other values."""
        made: dict[str, torch.Tensor] = {}
        for each in self.inputs:
            of = made.get(each.memory)
            if of is None:
                made[each.name] = self.tensor(each, type_, number)
                if self.mode == "grad" and each.requires_grad:
                    made[each.name].requires_grad_()
            else:
                made[each.name] = of.detach()[:1]
        return list(made.values())

    def tensor(self, of: Declared, type_: torch.dtype | None = None, number: int = 0) -> torch.Tensor:
        """One of the tensors: its values are rounded to the graph's type, whichever type it has."""
        key = sum(map(ord, of.name)) + 1000 * number + 7919 * self.seed
        generator = torch.Generator().manual_seed(key)
        if of.fill == "index":
            return torch.randint(of.limit, of.shape, generator=generator)
        values = torch.randn(of.shape, generator=generator) * of.scale
        if of.fill == "variance":
            values = torch.rand(of.shape, generator=generator) + 0.5
        rounded = values.to(TYPES[self.type])
        return stored(rounded if type_ is None else rounded.to(type_), of.memory)


class Drawn(nn.Module):
    """A model that was drawn."""


def stored(values: torch.Tensor, memory: str) -> torch.Tensor:
    """`values` in memory of this kind."""
    if memory == "channels":
        format_ = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
        return values if format_ is None else values.contiguous(memory_format=format_)
    if memory == "transposed":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if memory == "padded":
        larger = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype)
        larger[..., ::2] = values
        return larger[..., ::2]
    return values


def _text(results: Any, names: dict[str, str]) -> str:
    if isinstance(results, str):
        return names.get(results, results)
    if isinstance(results, dict):
        return "{" + ", ".join(f"{key!r}: {_text(each, names)}" for key, each in results.items()) + "}"
    inner = ", ".join(_text(each, names) for each in results)
    return f"[{inner}]" if isinstance(results, list) else f"({inner},)"


def names_in(results: Any) -> list[str]:
    """The names in nested results, in their order."""
    if isinstance(results, str):
        return [results]
    each_of = results.values() if isinstance(results, dict) else results
    return [name for each in each_of for name in names_in(each)]


def without_unused(graph: DrawnGraph) -> DrawnGraph:
    """The graph without steps and tensors that nothing reads, apart from steps that change what is there."""
    steps = list(graph.steps)
    while True:
        read = {*names_in(graph.results), *(name for step in steps for name in step.reads)}
        left = [step for step in steps if not step.makes or read.intersection(step.makes)]
        if len(left) == len(steps):
            break
        steps = left
    memories = {each.memory for each in graph.tensors if each.name in read}
    tensors = tuple(each for each in graph.tensors if each.name in read or each.name in memories)
    return replace(graph, steps=tuple(steps), tensors=tensors)
