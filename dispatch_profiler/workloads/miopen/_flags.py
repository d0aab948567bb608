"""Flags of MIOpenDriver: a table of them is read from the words of a command, and listed as its help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from dispatch_profiler.errors import UnsupportedFeature, WorkloadError, nearest, short_repr
from dispatch_profiler.operations import Operation

# -- problems --------------------------------------------------------------------------------------

# What commands and signatures describe, in the words of MIOpen and torch, and the operation of each direction.
#
# A problem has its forward's sizes in every direction. Directions are named like the modes of an operation.


FORWARD, INPUT, WEIGHT, BIAS = "forward", "input_backward", "weight_backward", "bias_backward"


class Problem(Protocol):
    """A problem of one kind, of one element type."""

    #: The word that commands of the kind begin with.
    kind: ClassVar[str]

    @property
    def type(self) -> str:
        """Name of the element type."""

    @property
    def directions(self) -> tuple[str, ...]:
        """The forward and the gradients of all operands that are not computed with another."""

    def operation(self, direction: str) -> Operation:
        """The operation of one direction. Raises OperationError."""


_MOST_DIGITS = 9
_WHOLE = re.compile(rf"-?[0-9]{{1,{_MOST_DIGITS}}}", re.ASCII)
_ANY_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)


@dataclass(frozen=True)
class Flag:
    """One flag: its names, default and purpose.

    `allowed` lists the supported values, if they are few; `why` is the reason why other values are not
    supported. A flag with `why` alone is rejected. `is_ignored`: the flag sets how the driver measures,
    verifies or prints, but does not change the computation. `also` has further names, from other versions of
    MIOpen.
    """

    long: str
    short: str
    default: str = ""
    purpose: str = ""
    allowed: tuple[str, ...] = ()
    why: str = ""
    is_ignored: bool = False
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, with their dashes."""
        return (f"-{self.short}", f"--{self.long}", *self.also)

    def check(self, name: str, value: str) -> None:
        """Raise UnsupportedFeature unless `value` is supported."""
        if not self.allowed or value in self.allowed:
            return
        available = f"available: {', '.join(self.allowed)}"
        reason = f"{self.why} ({available})" if self.why else available
        raise UnsupportedFeature(f"{name} {value[:40]}: {reason}")


def ignored(long: str, short: str) -> Flag:
    """A flag that does not change the computation."""
    return Flag(long, short, purpose="does not change what is computed", is_ignored=True)


#: Flags of every command.
COMMON = (
    Flag("help", "h", why="it prints MIOpenDriver's help, and computes nothing"),
    ignored("iter", "i"),
    ignored("time", "t"),
    ignored("verify", "V"),
)


@dataclass(frozen=True)
class Values:
    """The values of a command's flags, by their long names; defaults for flags that are not given."""

    given: Mapping[str, str]
    defaults: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.given.get(name, self.defaults[name])

    def whole(self, name: str) -> int:
        """The value as a whole number of at most 9 digits. Raises WorkloadError."""
        return whole(name, self[name])


def whole(name: str, value: str) -> int:
    """`value` of --`name` as a whole number of at most 9 digits. Raises WorkloadError."""
    if not _WHOLE.fullmatch(value):
        limit = f" of at most {_MOST_DIGITS} digits" if _ANY_WHOLE.fullmatch(value) else ""
        raise WorkloadError(f"--{name}: expected a whole number{limit}, but got {short_repr(value)}")
    return int(value)


@dataclass(frozen=True)
class Family:
    """Commands that differ in their element type only.

    `types` has the type of each command, and `directions` has the directions of each value of -F except 0,
    which means all directions of a problem. `read` and `write` convert values to a problem, given its type,
    and back.
    """

    kind: str
    types: Mapping[str, str]
    flags: tuple[Flag, ...]
    directions: Mapping[str, tuple[str, ...]]
    read: Callable[[Values, str], Problem]
    write: Callable[[Any], Mapping[str, str]]

    def values(self, words: Sequence[str]) -> Values:
        """The values in the words of a command. Raises WorkloadError and UnsupportedFeature."""
        given: dict[str, str] = {}
        at = 0
        while at < len(words):
            name, _, value = words[at].partition("=")
            flag = self._by_name.get(name)
            if flag is None:
                raise WorkloadError(f"unknown flag {short_repr(name)}", hint=self._hint(name))
            if flag.why and not flag.allowed:
                raise UnsupportedFeature(f"{name}: {flag.why}")
            if not value:
                at += 1
                if at == len(words):
                    raise WorkloadError(f"{name} has no value")
                value = words[at]
            flag.check(name, value)
            given[flag.long] = value
            at += 1
        return Values(given, self._defaults)

    @cached_property
    def _by_name(self) -> Mapping[str, Flag]:
        return {name: flag for flag in self.flags for name in flag.names}

    @cached_property
    def _defaults(self) -> Mapping[str, str]:
        return {flag.long: flag.default for flag in self.flags}

    def _hint(self, name: str) -> str:
        """The most similar flag, and how to list the others: there are too many for a hint."""
        near, listed = (
            nearest(name, self._by_name),
            f"dispatch-profiler boo {self.kind} --help lists the flags",
        )
        return f"did you mean {near!r}? {listed}" if near else listed

    def directions_of(self, forw: str, problem: Problem) -> tuple[str, ...]:
        """The directions of a value of -F. Raises UnsupportedFeature."""
        if forw == "0":
            return problem.directions
        if forw not in self.directions:
            raise UnsupportedFeature(f"-F {forw[:40]}: available: {', '.join(('0', *self.directions))}")
        return self.directions[forw]

    def forw_of(self, directions: Sequence[str], problem: Problem) -> str:
        """Inverse of `directions_of`, whatever their order. Raises UnsupportedFeature."""
        for forw in (*self.directions, "0"):
            if set(self.directions_of(forw, problem)) == set(directions):
                return forw
        raise UnsupportedFeature(f"-F has no value for {', '.join(directions)}")

    @property
    def help(self) -> str:
        """The flags with their defaults and purposes, one a line."""
        lines = [f"{', '.join(self.types)}: {self.kind} of {', '.join(self.types.values())}"]
        for flag in self.flags:
            purpose = f"rejected: {flag.why}" if flag.why and not flag.allowed else flag.purpose
            allowed = f" ({', '.join(flag.allowed)})" if flag.allowed else ""
            default = f"; default: {flag.default}" if flag.default else ""
            lines.append(f"  {', '.join(flag.names)}\n      {purpose}{allowed}{default}")
        return "\n".join(lines)
