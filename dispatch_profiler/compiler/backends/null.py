"""A compiler that compiles nothing, to try every verdict of the pipeline in seconds.

Its "vmfb" is JSON with instructions for the null device, function by function. Faults come from a YAML file
that maps globs over dispatch names to faults; the first match counts, and `tile_config_tuned` also matches as
the configuration that it stands for:

    "*_peel":            {not_compiled: no such tile}
    "matmul_64*":        {not_applied: true}
    "*_16x16x1":         {compiler: crash}
    "*_8x64x1":          {fault: wrong_element}
    "*_32x8x4":          {kernel: same}
    "*":                 {time_ms: 0.25}

Dispatches of an operation with the same `kernel` are compiled to the same code. Faults of the compiler: crash, hang, memory. Faults of a run: wrong_element, nan, inf, unwritten,
crash, hang, memory, clock_zero, clock_back, clock_stalls, clock_drifts.
"""

from __future__ import annotations

import fnmatch
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.configurations import Tuned
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import UsageError, did_you_mean, short_repr
from dispatch_profiler.files.regular import sha256

RUN_FAULTS = (
    "wrong_element", "nan", "inf", "unwritten", "crash", "hang", "memory",
    "clock_zero", "clock_back", "clock_stalls", "clock_drifts",
)  # fmt: skip
COMPILER_FAULTS = ("crash", "hang", "memory")
_KEYS = ("not_compiled", "not_applied", "compiler", "fault", "time_ms", "kernel")
MAGIC = "null vmfb"


@dataclass(frozen=True)
class Rule:
    """The faults of dispatches whose name matches `pattern`."""

    pattern: str
    not_compiled: str = ""
    not_applied: bool = False
    compiler: str = ""
    fault: str = ""
    time_ms: float | None = None
    kernel: str = ""


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Read a file of faults. Raises UsageError, which names the rule and the key."""
    from dispatch_profiler.files.yaml_files import load_yaml  # imported here: only files of faults need it

    try:
        data = load_yaml(path)
    except UsageError as error:
        hint = "FILE in null:FILE is relative to the current directory"
        raise UsageError(str(error), hint=hint) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected patterns with faults, but got {short_repr(data)}")
    return tuple(_rule(str(pattern), values, path) for pattern, values in data.items())


def _rule(pattern: str, values: Any, path: Path) -> Rule:
    where = f"{path}, {short_repr(pattern)}"
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected keys and values, but got {short_repr(values)}")
    for key in values:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            raise UsageError(f"{where}: unknown key {short_repr(key)}", hint=hint)
    for key, known in (("fault", RUN_FAULTS), ("compiler", COMPILER_FAULTS)):
        fault = values.get(key, "")
        if fault != "" and fault not in known:
            hint = did_you_mean(str(fault), known)
            raise UsageError(f"{where}: unknown {key} {short_repr(fault)}", hint=hint)
    for key, kind, what in (
        ("not_applied", bool, "true or false"),
        ("not_compiled", str, "a reason"),
        ("kernel", str, "a name"),
    ):
        if not isinstance(values.get(key, kind()), kind):
            raise UsageError(f"{where}: {key} must be {what}, but got {short_repr(values[key])}")
    time_ms = values.get("time_ms", 0)
    is_number = isinstance(time_ms, (int, float)) and not isinstance(time_ms, bool)
    if not is_number or not 0 <= time_ms < float("inf"):
        raise UsageError(f"{where}: time_ms must be a number of at least 0, but got {short_repr(time_ms)}")
    return Rule(pattern, **values)


def _simulate(fault: str) -> None:
    """Simulate a fault of the compiler in this process."""
    if fault == "crash":
        os.abort()
    if fault == "hang":
        time.sleep(3600)
    if fault == "memory":
        raise MemoryError("simulated by the null compiler")


@dataclass(frozen=True)
class NullCompiler:
    """Builds the JSON that the null device reads."""

    rules: tuple[Rule, ...] = ()

    @property
    def revision(self) -> str:
        return f"null {sha256(repr(self.rules).encode())[:12]}"

    def check_flags(self, flags: Sequence[str]) -> None:
        """Accept every flag; none has an effect."""

    def resolve(self, flags: Sequence[str]) -> tuple[str, ...]:
        """See `Compiler.resolve`."""
        return tuple(flags)

    def build(self, request: BuildRequest) -> Built:
        """See `Compiler.build`."""
        for dispatch in request.dispatches:
            rule = self._rule_for(dispatch)
            _simulate(rule.compiler)
            if rule.not_compiled:
                raise BuildError(rule.not_compiled, culprits=(dispatch.name,))
        outcomes = {dispatch.name: self._outcome(dispatch) for dispatch in request.dispatches}
        compiled = [d for d in request.dispatches if outcomes[d.name].state is State.COMPILED]
        if not compiled:
            return Built(b"", b"", outcomes)
        return Built(self._vmfb(compiled, 1), self._vmfb(compiled, request.repeat), outcomes)

    def _rule_for(self, dispatch: Dispatch) -> Rule:
        names = {dispatch.name, _untuned(dispatch).name}
        matching = (
            rule for rule in self.rules if any(fnmatch.fnmatchcase(name, rule.pattern) for name in names)
        )
        return next(matching, Rule("*"))

    def _outcome(self, dispatch: Dispatch) -> BuildOutcome:
        lowerings = dispatch.configuration.lowerings(dispatch.operation)
        texts = dict.fromkeys(lowering.lowering_config for lowering in lowerings)
        wanted = "; ".join(texts) or "the null compiler's choice"
        rule = self._rule_for(dispatch)
        if rule.not_applied:
            return BuildOutcome(State.NOT_APPLIED, f"requested {wanted}, but configured nothing")
        code = sha256((rule.kernel or _untuned(dispatch).name).encode())
        return BuildOutcome(State.COMPILED, applied=wanted, kernel=code)

    def _vmfb(self, dispatches: Sequence[Dispatch], repeat: int) -> bytes:
        functions = {}
        for dispatch in dispatches:
            rule = self._rule_for(dispatch)
            # 10 GFLOP/s unless a rule sets the time.
            time_ms = rule.time_ms if rule.time_ms is not None else dispatch.operation.flops / 1e7
            functions[dispatch.name] = {
                "operation": dispatch.operation.to_dict(),
                "fault": rule.fault,
                "time_ms": time_ms,
            }
        return json.dumps({"magic": MAGIC, "repeat": repeat, "functions": functions}).encode()


def _untuned(dispatch: Dispatch) -> Dispatch:
    """The dispatch whose code `dispatch` has: `tile_config_tuned` is compiled as the configuration that it stands for."""
    configuration = dispatch.configuration
    return Dispatch(dispatch.operation, configuration.inner) if isinstance(configuration, Tuned) else dispatch
