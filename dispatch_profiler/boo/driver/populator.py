"""Compiles kernels for launches ahead of time, in parallel, into the launch cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dispatch_profiler.boo.driver.command_lines import read_commands
from dispatch_profiler.boo.driver.generate import signature_mlir
from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
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
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.runtime.device_uri import DeviceUri

T = TypeVar("T")
CACHED, MISSING, FAILED = "cached", "missing", "failed"


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
        found = list(signatures)
        for number, command in enumerate(_listed(commands), 1):
            found += self._parse(f"command {number}", command)
        for line in () if commands_file is None else read_commands(Path(commands_file).expanduser()):
            found += self._parse(f"line {line.number}", line.text)
        #: All signatures, without duplicates.
        self.signatures: list[OpSignature] = list(dict.fromkeys(found))

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
        workers = max_processes or len(usable_cores())
        self._failures = {}
        for search, found in find_kernels(list(searches), cache, workers):
            preloaded = searches[search]
            if not isinstance(found, LaunchKernel):
                preloaded = replace(preloaded, reason=found.message)
                self._add_failure(preloaded)
            yield preloaded

    def _add_failure(self, preloaded: Preloaded) -> None:
        name = preloaded.signature.func_name
        others = self._failures.get(name)
        self._failures[name] = f"{others}; {preloaded.reason}" if others else preloaded.reason

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
        files = []
        for signature in self.signatures:
            path = folder / f"{signature.func_name}.mlir"
            write_atomic(path, signature_mlir(signature))
            files.append(path)
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


def _status(found: KernelOrError | None) -> str:
    if found is None:
        return MISSING
    return CACHED if isinstance(found, LaunchKernel) else f"{FAILED}: {found.message}"
