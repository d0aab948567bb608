"""Tuning files and their searches: for one operation, where and how to search for its fastest configuration.

    format: dispatch_profiler tuning
    version: 1
    name: BBS_TN_0
    operation: {"kind": "matmul", "m": 128, "n": 768, "k": 768, "rhs_layout": "n", "types": ["bf16", "bf16", "bf16"]}
    count: 48
    share: 31.2
    target: rocm:gfx950
    device: hip://0
    kinds: [mma_tiles, simt_tiles]
    strategy: prior
    evaluations: 64
    seed: 0

`gen_configs` writes them, and `optimize` reads them. Only `operation` and `target` are required.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations import KINDS, Configuration, spaces
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import DispatchProfilerError, TargetError, ToolError, UsageError, did_you_mean
from dispatch_profiler.files.json_fields import FieldError, flag, number, text, texts, whole
from dispatch_profiler.files.yaml_files import load_yaml
from dispatch_profiler.library import Library
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.evaluation.devices import SharedDevices, usual_devices
from dispatch_profiler.tuner.evaluation.stopwatch import Times
from dispatch_profiler.tuner.search.events import Listener, Sharing, ignore
from dispatch_profiler.tuner.search.operation_search import ROUND_SIZE, SearchTask
from dispatch_profiler.tuner.search.search import OperationResult, SearchOptions, search
from dispatch_profiler.tuner.spaces.seeds import baselines, known_kernels, seeds
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.storage import Storage
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY, STRATEGIES
from dispatch_profiler.workloads.workload_file import entry_of

FORMAT = "dispatch_profiler tuning"
VERSION = 1
#: Configurations that a search measures unless a file or an option says otherwise.
DEFAULT_EVALUATIONS = 64
#: A search ends when the strategy expects less than this more, in percent.
DEFAULT_LEAST_GAIN = 2.0
_KEYS = (
    "format", "version", "name", "operation", "count", "share", "origin", "modules", "target", "device", "kinds",
    "strategy", "evaluations", "seconds", "seed", "packed_weights", "least_gain",
)  # fmt: skip
#: Names become file names.
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)


@dataclass(frozen=True)
class Tuning:
    """What to tune, and how.

    `device` is a device URI. `kinds` are the kinds of configurations to search; if empty, all kinds of the operation. The
    search ends after `evaluations` configurations or after `seconds`, whichever comes first; one of them may be None.
    It also ends when less than `least_gain` percent more is expected of it. `share` is the operation's part of its workload in percent; None if unknown. `packed_weights`: the weight is
    constant, so that forms may pack it at load time. `modules` are paths in the model that the operation is from.
    """

    name: str
    operation: Operation
    target: Target
    device: str
    count: int = 1
    share: float | None = None
    origin: str = ""
    kinds: tuple[str, ...] = ()
    strategy: str = DEFAULT_STRATEGY
    evaluations: int | None = DEFAULT_EVALUATIONS
    seconds: float | None = None
    seed: int = 0
    packed_weights: bool = False
    least_gain: float = DEFAULT_LEAST_GAIN
    modules: tuple[str, ...] = ()

    def space(self, likely: Sequence[Configuration] = ()) -> SearchSpace:
        """The configurations to search; `likely` as in `SearchSpace`."""
        every = spaces(self.operation, self.target.limits, packed_weights=self.packed_weights)
        among = [each for each in every if not self.kinds or each.kind.kind in self.kinds]
        cores = usable_threads()
        return SearchSpace(self.operation, self.target.limits, among, cores=cores, likely=likely)


def tuning_text(tuning: Tuning) -> str:
    """The text of a tuning file. Values are JSON, which is YAML too."""
    share = "" if tuning.share is None else f", {tuning.share:.3g} % of its workload"
    values: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": tuning.name,
        "operation": tuning.operation.to_dict(),
        "count": tuning.count,
        "share": tuning.share,
        "origin": tuning.origin,
        "modules": list(tuning.modules) or None,
        "target": tuning.target.name,
        "device": tuning.device,
        "kinds": list(tuning.kinds) or None,
        "strategy": tuning.strategy,
        "evaluations": tuning.evaluations,
        "seconds": tuning.seconds,
        "seed": tuning.seed,
        "packed_weights": tuning.packed_weights or None,
        "least_gain": tuning.least_gain,
    }
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in values.items() if value is not None]
    return f"# {tuning.operation.name}{share}\n{''.join(lines)}"


def read_tuning(path: Path) -> Tuning:
    """Read a tuning file. Raises UsageError, which names the file and the key."""
    data = load_yaml(path)
    if not is_tuning(data):
        raise UsageError(
            f"{path} is not a tuning file: expected `format: {FORMAT}`",
            hint="dispatch-profiler gen_configs writes tuning files",
        )
    for key in data:
        if key not in _KEYS:
            raise UsageError(f"{path}: unknown key {str(key)[:100]!r}", hint=did_you_mean(str(key), _KEYS))
    try:
        return _tuning(path, data)
    except FieldError as error:
        raise UsageError(f"{path}: {error}", hint="docs/tuning.md lists the keys") from error
    except DispatchProfilerError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error


def read_tunings(path: Path) -> tuple[tuple[Tuning, ...], tuple[UsageError, ...]]:
    """The tuning file `path`, or all tuning files of the folder `path`, and an error for each that is damaged.

    Files of a folder are in the order of their names, with numbers as numbers; other YAML files are left out. Raises
    UsageError without a problem, or if two problems have the same name or the same operation.
    """
    if not path.is_dir():
        return (read_tuning(path),), ()
    tunings: dict[Path, Tuning] = {}
    errors = []
    for file in sorted(path.glob("*.yaml"), key=_in_order):
        try:
            if is_tuning(load_yaml(file)):
                tunings[file] = read_tuning(file)
        except UsageError as error:
            errors.append(error)
    if not tunings and not errors:
        inside = path / "tunings"  # as `tune` writes them
        hint = f"they are in {inside}" if inside.is_dir() else f"dispatch-profiler gen_configs LOG -o {path}"
        raise UsageError(f"{path} has no tuning files", hint=hint)
    _check_distinct(tunings)
    return tuple(tunings.values()), tuple(errors)


def is_tuning(data: object) -> bool:
    """Whether the data of a YAML file is marked as a tuning file."""
    return isinstance(data, dict) and data.get("format") == FORMAT


def _in_order(path: Path) -> tuple[list[tuple[int, str]], str]:
    """`BBS_TN_2` before `BBS_TN_10`."""
    parts = re.findall(r"\d{1,18}|\D+", path.stem)
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in parts], path.name


def _check_distinct(tunings: Mapping[Path, Tuning]) -> None:
    names: dict[object, Path] = {}
    for path, tuning in tunings.items():
        for what in (tuning.name, (tuning.operation, tuning.target)):
            first = names.setdefault(what, path)
            if first != path:
                same = f"the name {tuning.name}" if what == tuning.name else tuning.operation.name
                raise UsageError(f"{first} and {path} are both for {same}", hint="remove one of them")


def _tuning(path: Path, data: Mapping[str, Any]) -> Tuning:
    """Raises FieldError and other errors of this package."""
    if data.get("version", VERSION) != VERSION:
        raise FieldError(f"version: this program reads version {VERSION}, but got {data['version']!r}")
    entry = entry_of(
        {key: data[key] for key in ("operation", "count", "origin", "modules") if key in data}, ""
    )
    target = parse_target(text(data, "target"))
    name = text(data, "name", path.stem)
    if not NAME.fullmatch(name):
        raise FieldError(f"name: expected letters, digits, '_', '-' and '.', but got {name[:100]!r}")
    return Tuning(
        name,
        entry.operation,
        target,
        text(data, "device", target.device_uri),
        entry.count,
        number(data, "share", least=0.0) if "share" in data else None,
        entry.origin,
        tuple(_known("kinds", each, KINDS) for each in texts(data, "kinds", ())),
        _known("strategy", text(data, "strategy", DEFAULT_STRATEGY), STRATEGIES),
        _evaluations(data),
        _seconds(data),
        whole(data, "seed", most=2**32 - 1, default=0),
        flag(data, "packed_weights", False),
        number(data, "least_gain", least=0.0) if "least_gain" in data else DEFAULT_LEAST_GAIN,
        entry.modules,
    )


def _known(key: str, value: str, known: Mapping[str, object]) -> str:
    if value not in known:
        raise UsageError(f"{key}: unknown name {value[:100]!r}", hint=did_you_mean(value, known))
    return value


def _evaluations(data: Mapping[str, Any]) -> int | None:
    if "evaluations" not in data:
        return None if "seconds" in data else DEFAULT_EVALUATIONS
    return whole(data, "evaluations", least=1, most=10**9)


def _seconds(data: Mapping[str, Any]) -> float | None:
    if "seconds" not in data:
        return None
    seconds = number(data, "seconds")
    if seconds <= 0.0:
        raise FieldError(f"seconds: expected a number above 0, but got {seconds:g}")
    return seconds


# -- searches --------------------------------------------------------------------------------------

# Tuning files -> searches: the problems of a target and device are searched together.


@dataclass(frozen=True)
class Searched:
    """The outcome of the search for one problem: a result, or the reason why it has no result."""

    tuning: Tuning
    result: OperationResult | None = None
    failure: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether nothing was verified."""
        return self.result is None or self.result.best is None


def task_of(
    tuning: Tuning, library: Library | None = None, *, follows: Operation | None = None
) -> SearchTask:
    """The search that a tuning file describes; winners of `library` are among its seeds.

    Where rules know kernels that pack the weight, seeds fill the first round only: the model of speed ranks all others that
    are likely to be fast. It follows the search for `follows`, if that is another operation.
    """
    operation, target = tuning.operation, tuning.target
    first = baselines(operation, target)
    likely = [
        each
        for each in seeds(operation, target, library, packed_weights=tuning.packed_weights)
        if each not in first and (not tuning.kinds or each.kind in tuning.kinds)
    ]
    is_ruled = tuning.packed_weights and bool(known_kernels(operation, target))
    count = ROUND_SIZE - len(first) if is_ruled else len(likely)
    return SearchTask(
        tuning.space(likely[count:]),
        first,
        tuple(likely[:count]),
        tuning.strategy,
        tuning.seed,
        tuning.evaluations,
        tuning.seconds,
        descend_after(tuning.evaluations),
        tuning.least_gain / 100.0,
        follows=None if follows == operation else follows,
    )


def descend_after(evaluations: int | None) -> int:
    """After how many proposals a search descends: three quarters of its budget, or of the default budget without a limit."""
    return 3 * (evaluations or DEFAULT_EVALUATIONS) // 4


def search_tunings(
    tunings: Sequence[Tuning],
    storage: Storage,
    options: SearchOptions,
    library: Library | None = None,
    listen: Listener = ignore,
) -> tuple[tuple[Searched, ...], Times]:
    """Search for the fastest configuration of each problem: the outcomes, in order, and where the time went.

    Of problems that differ in their epilogues only, one is searched, and its fastest configurations are measured for
    the others. Uses `options.devices`; without them, the devices of each file (`usual_devices`). A device that fails
    affects only its own problems. Targets and devices divide `options.seconds` by their evaluations. Raises StorageError if the storage fails or another search uses it.
    """
    groups: dict[tuple[Target, str], list[int]] = {}
    for place, tuning in enumerate(tunings):
        device = options.devices[0] if options.devices else tuning.device
        groups.setdefault((tuning.target, device), []).append(place)
    searched: dict[int, Searched] = {}
    times = Times()
    clock = SharedTime(options.seconds, [tuning.evaluations for tuning in tunings])
    for (target, device), places in groups.items():
        # With a cluster and without names, `search` takes the devices of its workers.
        is_given = options.devices or options.cluster is not None
        shared = SharedDevices(options.devices) if is_given else usual_devices(device)
        if len(shared.devices) > 1 or shared.left_out:
            listen(Sharing(len(places), shared.devices, shared.left_out))
        on_device = replace(
            options,
            evaluator=replace(options.evaluator, device=device),
            devices=shared.devices,
            seconds=clock.next_part([tunings[place].evaluations for place in places]),
        )
        leaders = _leaders({place: tunings[place] for place in places})
        turn = sorted(places, key=lambda place: leaders[place] != place)
        tasks = [
            task_of(tunings[place], library, follows=tunings[leaders[place]].operation) for place in turn
        ]
        try:
            outcome = search(tasks, target, storage, on_device, listen)
        except (TargetError, ToolError) as error:
            searched |= {place: Searched(tunings[place], failure=error.message) for place in turn}
            continue
        times += outcome.times
        searched |= {
            place: Searched(tunings[place], result)
            for place, result in zip(turn, outcome.operations, strict=True)
        }
    return tuple(searched[place] for place in range(len(tunings))), times


class SharedTime:
    """Divides `seconds`, or None for no limit, among searches that run one after the other.

    `evaluations` are the limits of all problems; a problem without one counts like `DEFAULT_EVALUATIONS`.
    """

    def __init__(
        self,
        seconds: float | None,
        evaluations: Sequence[int | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._ends = None if seconds is None else now() + seconds
        self._left = _count(evaluations)

    def next_part(self, evaluations: Sequence[int | None]) -> float | None:
        """Seconds for the next search, with problems of these limits: what earlier ones left, in proportion."""
        if self._ends is None:
            return None
        count = _count(evaluations)
        part = max(0.0, self._ends - self._now()) * count / self._left
        self._left -= count
        return part


def _count(evaluations: Sequence[int | None]) -> int:
    return sum(DEFAULT_EVALUATIONS if each is None else each for each in evaluations)


def _leaders(tunings: Mapping[int, Tuning]) -> dict[int, int]:
    """The place of the problem that is searched for each of `tunings`: of problems that differ in the epilogue only, the
    problem that runs most often."""
    alike: dict[Tuning, list[int]] = {}
    for place, tuning in tunings.items():
        sums = replace(
            tuning,
            name="",
            operation=tuning.operation.without_epilogue,
            count=1,
            share=None,
            origin="",
            modules=(),
        )
        alike.setdefault(sums, []).append(place)
    return {
        place: max(group, key=lambda each: tunings[each].count) for group in alike.values() for place in group
    }
