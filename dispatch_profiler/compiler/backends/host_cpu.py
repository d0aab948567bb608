"""The CPU that `host` stands for: the CPU with the most features with which the compiler works.

The compiler finds the name of this CPU, and the features that it may use. A hypervisor may mask features; the
name then implies features that are missing. IREE 3.13 assumes that they are present where it chooses tiles,
and LLVM aborts, for example for bf16 on a Xeon without avx512_bf16. So the name and the features are first
tried on a small module of each element type, in each flow, in a worker. If something fails, the same features
are tried under the names of other CPUs, the most similar first, and last the levels of the architecture. The
answer is kept for this compiler and this CPU.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import queue
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from dispatch_profiler.compiler._base import SMALLEST_MODULE, BuildError
from dispatch_profiler.compiler.backends.phases import OUTLINED, Phases
from dispatch_profiler.compiler.cache import Cache
from dispatch_profiler.configurations import FLOWS
from dispatch_profiler.cores import usable_processes
from dispatch_profiler.errors import ToolError
from dispatch_profiler.files.json_fields import flag, mapping, parse_json, text
from dispatch_profiler.files.regular import locked, sha256
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.sources import HOST_CPU
from dispatch_profiler.targets import CPU_NAMES, CpuTarget, host_cpu

CPU_FLAG = "--iree-llvmcpu-target-cpu"
HOST = f"{CPU_FLAG}=host"
_FEATURES_FLAG = f"{CPU_FLAG}-features"
#: Time limit in seconds for one probe.
_SECONDS = 120.0
#: Names that are tried before the levels.
_MOST_NAMES = 4
#: Levels of an architecture, the highest first.
_LEVELS = {"x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"), "aarch64": ("generic",)}
_FEATURES = re.compile(r"([+-][\w.+-]+(,[+-][\w.+-]+)*)?")
#: Features that the code generator never uses by itself: a name may imply them although they are masked.
_UNUSED_FEATURES = """
    cldemote clflushopt clwb clzero enqcmd fsgsbase hreset invpcid kl lwp movdir64b movdiri movrs mwaitx pconfig pku
    prefetchi prfchw ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx shstk tsxldtrk uintr usermsr waitpkg
    wbnoinvd widekl xsave xsavec xsaveopt xsaves
"""
UNUSED = frozenset(_UNUSED_FEATURES.split())
_log = logging.getLogger(__name__)
#: CPUs that this process has determined, by the key in the cache.
known_cpus: dict[str, CpuChoice] = {}


class HasPhases(Protocol):
    """A compiler that worker processes can use: picklable, with the steps of a compilation."""

    @property
    def revision(self) -> str: ...

    @property
    def phases(self) -> Phases: ...


@dataclass(frozen=True)
class CpuChoice:
    """A CPU as LLVM knows it: `features` are in addition to the name's. `reason` explains the choice."""

    cpu: str
    features: str
    reason: str
    #: Whether it is the CPU that the compiler detects.
    is_detected: bool = True
    #: False if another attempt may choose another CPU: this attempt lacked memory, processes or disk space.
    is_settled: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler flags that select it."""
        if self.cpu == "host":
            return (HOST,)
        return (f"{CPU_FLAG}={self.cpu}", f"{_FEATURES_FLAG}={self.features}")

    def __str__(self) -> str:
        return f"{self.cpu}: {self.reason}"


def resolved_flags(compiler: HasPhases, flags: Sequence[str], folder: Path | None = None) -> tuple[str, ...]:
    """`flags` with the CPU of `chosen_cpu` in place of `host`; features that `flags` name are added to its own."""
    if HOST not in flags:
        return tuple(flags)
    cpu, *features = chosen_cpu(compiler, folder).flags
    given = [each for each in flags if each.startswith(f"{_FEATURES_FLAG}=")]
    if features and given:
        features = [",".join([*features, *(each.partition("=")[2] for each in given)])]
        flags = [each for each in flags if each not in given]
    return tuple(new for each in flags for new in ((cpu, *features) if each == HOST else (each,)))


def chosen_cpu(compiler: HasPhases, folder: Path | None = None) -> CpuChoice:
    """The CPU that `host` stands for on this machine. The answer is kept in the user's cache, or else in `folder`.

    If the compiler cannot be tried at all at present, for example for want of processes, it is the CPU that
    the compiler detects. Raises ToolError if the compiler does not work.
    """
    from dispatch_profiler.command import user_cache  # imported here: it is slow to import

    key = sha256(json.dumps([compiler.revision, host_cpu().fingerprint, _version()]).encode())
    if (found := known_cpus.get(key)) is not None:
        return found
    caches = [Cache(each / "cpus") for each in (user_cache(), folder) if each is not None]
    found = _kept(caches, key) or _tried_alone(compiler, caches, key)
    if found.is_settled:
        known_cpus[key] = found
    return found


def _kept(caches: Sequence[Cache], key: str) -> CpuChoice | None:
    found = (_parsed(cache.get_text(key)) for cache in caches)
    return next(filter(None, found), None)


def _tried_alone(compiler: HasPhases, caches: Sequence[Cache], key: str) -> CpuChoice:
    """The result of the trial. If another process is trying the same compiler, waits for the result of that process."""
    for cache in caches:
        with contextlib.suppress(OSError), locked(cache.folder / f"{key[:16]}.lock"):
            found = _kept([cache], key) or _tried(compiler)
            if found.is_settled:
                cache.put_text(key, json.dumps(vars(found)), f"cpu_{found.cpu}")
            return found
    return _tried(compiler)


def _version() -> str:
    return HOST_CPU.hash()


def _tried(compiler: HasPhases) -> CpuChoice:
    try:
        with contextlib.ExitStack() as stack:
            count = min(usable_processes(), len(PROBES))
            workers = [stack.enter_context(Worker(WorkerLimits(_SECONDS))) for _ in range(count)]
            found = _Trial(compiler, workers).choice()
    except ToolError as error:
        if error.is_deterministic:
            raise
        return CpuChoice("host", "", f"not tried: {error.message}", is_settled=False)
    if not found.is_detected:
        _log.warning("kernels for this CPU are compiled for %s", found)
    return found


def _parsed(kept: str | None) -> CpuChoice | None:
    """The choice that `_tried` kept; None if it is damaged or does not name a CPU."""
    try:
        row = mapping(parse_json((kept or "").encode()))
        found = CpuChoice(
            text(row, "cpu"), text(row, "features"), text(row, "reason"), flag(row, "is_detected")
        )
    except ValueError:
        return None
    is_known = found.cpu == "generic" or any(found.cpu in names for names in CPU_NAMES.values())
    return found if is_known and _FEATURES.fullmatch(found.features) else None


class _Trial:
    """Tries one CPU after the other, each in all of `workers` at once."""

    def __init__(self, compiler: HasPhases, workers: Sequence[Worker]) -> None:
        self._compiler = compiler
        self._workers = tuple(workers)
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            self._free.put(worker)
        self._count = len(workers)
        #: False once a probe failed that may succeed at another time.
        self._is_settled = True

    def choice(self) -> CpuChoice:
        """The first candidate for which all probes compile, or the candidate with the fewest failures."""
        tried: list[tuple[int, CpuChoice]] = []
        why = ""
        for candidate in self._candidates():
            failures = self._failures(candidate, min((count for count, _ in tried), default=len(PROBES)))
            if not tried and failures:
                why = f"; {candidate.cpu}, which the compiler finds here, fails: {failures[0]}"
            tried.append((len(failures), replace(candidate, reason=candidate.reason + why)))
            if not failures or not self._is_settled:
                break
        _, found = min(tried, key=lambda each: each[0])
        return replace(found, is_settled=self._is_settled)

    def _failures(self, candidate: CpuChoice, most: int) -> list[str]:
        """Reasons of the probes that fail, at most `most`."""
        with ThreadPoolExecutor(self._count) as threads:
            reasons = list(threads.map(partial(self._failure, candidate), PROBES))
        failures = [
            f"{probe.name}: {reason}" for probe, reason in zip(PROBES, reasons, strict=True) if reason
        ]
        return failures[:most]

    def _failure(self, candidate: CpuChoice, probe: Probe) -> str:
        flags, worker = (*_flags(candidate.flags), *probe.flags), self._free.get()
        try:
            worker.call(compile_probe, self._compiler, probe.source, flags)
        except ToolError as error:
            self._is_settled = self._is_settled and error.is_deterministic
            return error.message
        finally:
            self._free.put(worker)
        return ""

    def _candidates(self) -> Iterator[CpuChoice]:
        name, given = self._cpu_of((HOST,), self._workers)
        _, implied = self._cpu_of((f"{CPU_FLAG}={name}",), self._workers[:1])
        # The compiler puts the features that a name implies before the others.
        own = given.removeprefix(implied).strip(",")
        yield CpuChoice(name, own, "as the compiler finds it")
        usable = {each[1:] for each in own.split(",") if each.startswith("+")}
        implied_by = self._implied()
        suitable = [
            each for each, features in implied_by.items() if each != name and features - usable <= UNUSED
        ]
        levels = [
            each for each in _LEVELS.get(platform.machine(), ()) if each in suitable or each == "generic"
        ]
        nearest = sorted(suitable, key=lambda each: -len(implied_by[each] & usable))
        for each in [each for each in nearest if each not in levels][:_MOST_NAMES]:
            yield CpuChoice(each, own, "the most similar CPU, with the features of this one", False)
        for each in levels:
            yield CpuChoice(each, "", "a level of the architecture that this CPU has", False)

    def _implied(self) -> dict[str, frozenset[str]]:
        """The features that each name of a CPU of this architecture implies."""
        names = next(
            (names for triple, names in CPU_NAMES.items() if triple.startswith(platform.machine())), ()
        )
        found: dict[str, frozenset[str]] = self._workers[0].call(implied_features, self._compiler, names)
        return found

    def _cpu_of(self, cpu: tuple[str, ...], workers: Sequence[Worker]) -> tuple[str, str]:
        """See `cpu_of`. The first call loads the compiler: in all `workers` at once, so that no probe waits for it."""
        with ThreadPoolExecutor(len(workers)) as threads:
            found = [threads.submit(each.call, cpu_of, self._compiler, _flags(cpu)) for each in workers]
        first: tuple[str, str] = found[0].result()
        return first


def _flags(cpu: Sequence[str]) -> tuple[str, ...]:
    """The flags of the target for this machine with another CPU."""
    return tuple(new for each in CpuTarget().compile_flags for new in (cpu if each == HOST else (each,)))


# -- in the worker process -------------------------------------------------------------------------


def cpu_of(compiler: HasPhases, flags: tuple[str, ...]) -> tuple[str, str]:
    """Name and features of the CPU that `flags` select, as the compiler resolves them. Raises ToolError."""
    phases = compiler.phases
    text_ = phases.advance(phases.parse(SMALLEST_MODULE, flags), flags, stop=OUTLINED).text()
    found = re.search(r'\bcpu = "([^"]*)", cpu_features = "([^"]*)"', text_)
    if found is None:
        raise ToolError(
            f"the compiler does not report the CPU of {' '.join(flags)}",
            hint="name it: --target=llvm-cpu:CPU",
        )
    return found[1], found[2]


def implied_features(compiler: HasPhases, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """The features that each name of a CPU implies; names that the compiler does not know are left out."""
    found = {}
    for name in names:
        try:
            cpu, features = cpu_of(compiler, _flags((f"{CPU_FLAG}={name}",)))
        except BuildError:
            continue
        if cpu == name:
            found[name] = frozenset(each[1:] for each in features.split(",") if each.startswith("+"))
    return found


def compile_probe(compiler: HasPhases, source: str, flags: tuple[str, ...]) -> None:
    """Compile a module. Raises BuildError, or ends the process."""
    phases = compiler.phases.without_verifier()
    phases.advance(phases.parse(source, flags), flags, stop="hal")


# -- cpu probes ------------------------------------------------------------------------------------

# Small modules that a code generator for CPUs must compile: products of each element type, and conversions.


#: Element type -> type of the sums.
_SUMS = {"f32": "f32", "f16": "f32", "bf16": "f32", "f64": "f64", "i8": "i32", "i32": "i32"}
#: Conversions: the types that a value passes through, and the operations that convert it.
_CONVERSIONS = (
    ("truncf", "f32", "bf16"), ("extf", "bf16", "f32"), ("truncf", "f32", "f16"), ("extf", "f16", "f32"),
    ("extf", "f32", "f64"), ("truncf", "f64", "f32"), ("fptosi", "f32", "i8"), ("sitofp", "i8", "f32"),
)  # fmt: skip
_PRODUCT = """func.func @product_{type}(%x: tensor<16x16x{type}>, %y: tensor<16x16x{type}>, %z: tensor<16x16x{sum}>) -> tensor<16x16x{sum}> {{
  %r = linalg.matmul ins(%x, %y : tensor<16x16x{type}>, tensor<16x16x{type}>) outs(%z : tensor<16x16x{sum}>) -> tensor<16x16x{sum}>
  return %r : tensor<16x16x{sum}>
}}
"""
_CHAIN = """func.func @conversions(%x: tensor<64xf32>) -> tensor<64xf32> {{
  %e = tensor.empty() : tensor<64xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}} ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {{
  ^bb0(%v0: f32, %o: f32):
{steps}
    linalg.yield %v{last} : f32
  }} -> tensor<64xf32>
  return %r : tensor<64xf32>
}}
"""


@dataclass(frozen=True)
class Probe:
    """A module, and compiler flags in addition to the target's."""

    name: str
    source: str
    flags: tuple[str, ...] = ()


def _products(*types: str) -> str:
    return "".join(_PRODUCT.format(type=each, sum=_SUMS[each]) for each in types)


def _conversions() -> str:
    steps = (
        f"    %v{number + 1} = arith.{name} %v{number} : {before} to {after}"
        for number, (name, before, after) in enumerate(_CONVERSIONS)
    )
    return _CHAIN.format(steps="\n".join(steps), last=len(_CONVERSIONS))


def _probe(flow: str, *types: str) -> Probe:
    return Probe(f"{', '.join(types)} products with {flow}", _products(*types), FLOWS[flow].flags)


#: Each flow has its own rules for the available instructions.
PROBES = (
    Probe("products and conversions", _products(*_SUMS) + _conversions()),
    _probe("data_tiling", "f32", "f16", "bf16", "i8"),
    _probe("ukernels", "f32", "f16", "bf16", "i8"),
)
