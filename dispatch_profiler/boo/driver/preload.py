"""`dispatch-profiler preload COMMANDS`, also as `python -m dispatch_profiler.boo.driver.preload`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dispatch_profiler import startup
from dispatch_profiler.boo.driver.generate import signature_mlir
from dispatch_profiler.boo.driver.registry import BooOpRegistry, read_commands
from dispatch_profiler.boo.environment import LaunchSettings, configure_logging, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import (
    KernelOrError,
    KernelSearch,
    Toolchain,
    find_kernels,
    launch_devices,
    target_of,
)
from dispatch_profiler.boo.op_exports import OpSignature
from dispatch_profiler.boo.progress import compiling
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    positive,
    run,
    say,
    shows_live,
    track,
    warn,
    warn_table,
)
from dispatch_profiler.compiler import Cache
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_processes
from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.runtime.device_uri import DeviceUri

# -- the populator ---------------------------------------------------------------------------------

# Compiles kernels for launches ahead of time, in parallel, into the launch cache.


T = TypeVar("T")
CACHED, MISSING, _FAILED = "cached", "missing", "failed"


@dataclass(frozen=True)
class Preloaded:
    """The outcome of one signature on one device: `reason` says why it has no kernel, and is empty if it has one."""

    signature: OpSignature
    device: DeviceUri
    reason: str = ""


class CachePopulator:
    """Fills the launch cache with the kernels of signatures and of MIOpen commands.

    Equal signatures are compiled once. `devices` are URIs such as `local-task` and `cuda://1` (default: this CPU, and a
    GPU of each architecture of this machine). `cache_dir` is the folder of the cache (default: the launch cache's).

    `get_failures` lists bad commands by their place. `commands_file` is read with `read_commands`. Raises UsageError
    if the file cannot be read.
    """

    def __init__(
        self,
        *,
        cache_dir: str | Path | None = None,
        devices: Sequence[str] | None = None,
        signatures: Iterable[OpSignature] = (),
        commands: Iterable[str | Sequence[str]] = (),
        commands_file: str | Path | None = None,
    ) -> None:
        self._cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self._device_names = _listed(devices)
        self._bad_commands: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        every = list(signatures)
        for number, command in enumerate(_listed(commands), 1):
            every += self._parse(f"command {number}", command)
        for line in () if commands_file is None else read_commands(Path(commands_file).expanduser()):
            every += self._parse(f"line {line.number}", line.text)
        #: All signatures, without duplicates.
        self.signatures: list[OpSignature] = list(dict.fromkeys(every))

    def _parse(self, place: str, command: str | Sequence[str]) -> Sequence[OpSignature]:
        """The signatures of a command: several if its `-F` names several directions, none if the command is bad."""
        try:
            return BooOpRegistry.parse_commands(command)
        except DispatchProfilerError as error:
            self._bad_commands[place] = f"{error}; {error.hint}" if error.hint else str(error)
            return ()

    @cached_property
    def devices(self) -> tuple[DeviceUri, ...]:
        """The devices that kernels are compiled for."""
        if self._device_names is None:
            return launch_devices()
        return tuple(dict.fromkeys(map(DeviceUri.parse, self._device_names)))

    @property
    def cache_folder(self) -> Path:
        """The folder of the cache. Raises UsageError if BOO_CACHE_ON is 0 and no folder was given."""
        folder = self._cache_dir or self._settings.cache_folder
        if folder is None:
            raise UsageError("BOO_CACHE_ON is 0, so launches use no cache", hint="unset it, or name a folder")
        return folder

    def run(self, max_processes: int | None = None) -> None:
        """Compile the kernels that the cache lacks, `max_processes` at once (default: one per core).

        Afterwards, `get_failures` lists the signatures without a kernel. Raises UsageError if `max_processes` is not
        positive, TargetError for a missing device, and ToolError if the compiler does not start.
        """
        with compiling("preload"):
            for _ in self.results(max_processes):
                pass

    def results(self, max_processes: int | None = None) -> Iterator[Preloaded]:
        """Like `run`, but yields the outcome of each signature on each device as soon as it is known.

        Also raises UsageError if the folder of the cache is not writable.
        """
        if max_processes is not None and max_processes < 1:
            raise UsageError(f"max_processes must be at least 1, but is {max_processes}")
        cache = Cache(self.cache_folder)
        cache.check_writable()
        searches = {
            search: Preloaded(signature, device)
            for signature, device, search in self._searches(self.signatures)
        }
        workers = max_processes or usable_processes()
        self._failures = {}
        for search, kernel in find_kernels(list(searches), cache, workers):
            preloaded = searches[search]
            if not isinstance(kernel, LaunchKernel):
                preloaded = replace(preloaded, reason=kernel.message)
                name = preloaded.signature.func_name
                others = [self._failures[name]] if name in self._failures else []
                self._failures[name] = "; ".join([*others, preloaded.reason])
            yield preloaded

    def get_failures(self) -> dict[str, str]:
        """Signature name, or place of a bad command -> why it has no kernel."""
        return {**self._bad_commands, **self._failures}

    def get_cache_status(self, func_name: str) -> dict[str, str]:
        """Device -> `cached`, `missing`, or `failed: REASON`, for the signature called `func_name`.

        Raises UsageError if no signature has this name.
        """
        named = [signature for signature in self.signatures if signature.func_name == func_name]
        if not named:
            hint = did_you_mean(func_name, (signature.func_name for signature in self.signatures))
            raise UsageError(f"no signature is called {func_name}", hint=hint)
        cache = Cache(self.cache_folder)
        return {str(device): _status(search.look_up(cache)) for _, device, search in self._searches(named)}

    def write_mlir(self, folder: Path) -> list[Path]:
        """Write the MLIR of each signature, without a configuration, to `folder`. Returns the paths of the files."""
        files = [folder / f"{signature.func_name}.mlir" for signature in self.signatures]
        for path, signature in zip(files, self.signatures, strict=True):
            write_atomic(path, signature_mlir(signature))
        return files

    @cached_property
    def _settings(self) -> LaunchSettings:
        return launch_settings()

    def _searches(
        self, signatures: Sequence[OpSignature]
    ) -> Iterator[tuple[OpSignature, DeviceUri, KernelSearch]]:
        for device in self.devices:
            toolchain = Toolchain.of(target_of(device), self._settings.tuning)
            for signature in signatures:
                yield signature, device, KernelSearch(signature.operation, signature.func_name, toolchain)


def _listed(values: T | str) -> T | list[str]:
    """`values`, with a single string as a list of one: a string would pass as a sequence of characters."""
    return [values] if isinstance(values, str) else values


def _status(kernel: KernelOrError | None) -> str:
    if kernel is None:
        return MISSING
    return CACHED if isinstance(kernel, LaunchKernel) else f"{_FAILED}: {kernel.message}"


# -- the command -----------------------------------------------------------------------------------

PROG = "dispatch-profiler preload"
#: The class's other name in the documents of BOO.
CachePrepopulator = CachePopulator
#: Folder of the MLIR that `--device=""` writes.
_MLIR = "mlir"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="finished kernels are in the cache")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Compile the kernels of MIOpen commands into the launch cache, ahead of their first launch.",
        HelpPage(examples=(f"{prog} commands.txt", f"{prog} commands.txt --device=cuda --jobs=4")),
    )
    parser.add_argument(
        "commands_file", metavar="COMMANDS",
        help="file with one command per line; sample_commands.txt comes with the package",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--cache-dir", type=folder, metavar="DIR",
        help="folder of the cache (default: BOO_CACHE_DIR, or $XDG_CACHE_HOME/dispatch_profiler)",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--device", action="append", metavar="DEVICE",
        help='device to compile for, such as local-task or cuda; may be given several times; "" writes only MLIR, '
        f"to --cache-dir or ./{_MLIR} (default: this CPU, and a GPU of each architecture)",
    )  # fmt: skip
    parser.add_argument(
        "-j",
        "--jobs",
        "--max-processes",
        type=positive,
        metavar="N",
        help="compiler processes (default: one per core)",
    )
    return parser


def _main(options: argparse.Namespace) -> int:
    configure_logging()
    only_mlir = options.device is not None and "" in options.device
    if only_mlir and len(options.device) > 1:
        raise UsageError('--device="" excludes other devices', hint="leave one of them out")
    populator = CachePopulator(
        cache_dir=options.cache_dir, devices=options.device, commands_file=folder(options.commands_file)
    )
    if only_mlir:
        files = populator.write_mlir(options.cache_dir or Path(_MLIR))
        say(f"Wrote {counted(len(files), 'file')} to {options.cache_dir or _MLIR}")
    else:
        _preload(populator, options.jobs)
    failures = populator.get_failures()
    if not failures:
        return SUCCESS
    warn("Failures:")
    warn_table(failures.items())
    return FAILED


def _preload(populator: CachePopulator, processes: int | None) -> None:
    total = len(populator.signatures) * len(populator.devices)
    failed: list[str] = []
    results = populator.results(processes)
    # A terminal has a bar.
    with compiling("preload", is_shown=False if shows_live() else None):
        for each in track(results, total, "Compiling", note=lambda: f"{len(failed)} failed"):
            if each.reason:
                failed.append(each.reason)
    kernels, devices = counted(total - len(failed), "kernel"), ", ".join(map(str, populator.devices))
    say(f"{kernels} for {devices} in {populator.cache_folder}; {len(failed)} failed")


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.driver.preload"))
