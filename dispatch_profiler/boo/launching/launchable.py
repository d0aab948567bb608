"""Compiled operations that Python calls with tensors or arrays."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any

import iree.runtime as rt
import numpy as np

from dispatch_profiler.boo.interface import KernelProvider, LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.array_library import ArrayLibrary, FastLaunch, LaunchAt, launch_at
from dispatch_profiler.boo.launching.arrays.numpy_arrays import NumpyArrays
from dispatch_profiler.boo.launching.loading import (
    TASK,
    LoadedKernel,
    MakeArguments,
    load,
    load_on_gpu,
    load_on_host,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice

#: Library and device.
_FastKey = tuple[type[ArrayLibrary], DeviceUri]
_LOGGER = logging.getLogger("dispatch_profiler.boo")


class Launchable:
    """A compiled operation, called with torch tensors or numpy arrays.

    The first launch on a device compiles or loads the kernel. On the CPU, it also measures whether the kernel is faster
    on the calling thread or on several threads.

    Several threads may launch at the same time. Launches leave the scheduling, affinity, environment and signal
    handlers of the process alone, except that the launching thread is in the batch class while it waits for other
    threads (see `waiting`). A process forked after a launch on the CPU loads the kernel again. A process forked after a
    launch on a GPU cannot use the GPU: launches there raise TargetError.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        kernels: KernelProvider,
        *,
        threads: int | None = None,
        driver_choices: MutableMapping[str, str] | None = None,
    ) -> None:
        """`kernels` supplies the kernel of `spec.operation` for each device.

        `threads` is the number of CPU threads for a launch; None means `usable_threads`. `driver_choices`
        remembers the faster driver of each kernel: launchables that share it measure a kernel only once. Raises
        UsageError if `threads` is not a positive whole number.
        """
        if threads is not None and (type(threads) is not int or threads < 1):
            raise UsageError(f"threads must be a whole number of at least 1, but got {threads!r}")
        self.spec = spec
        self._name = spec.operation.name
        self._kernels = kernels
        self._threads = threads
        self._choices = {} if driver_choices is None else driver_choices
        self._logged: set[tuple[str, str]] = set()
        self._forget_devices()
        _launchables.add(self)

    def __repr__(self) -> str:
        return f"<Launchable {self._name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies, and processes that are spawned, load the kernel again.
        return partial(Launchable, threads=self._threads, driver_choices=self._choices), (
            self.spec,
            self._kernels,
        )

    def __call__(self, *args: Any, out: Any = None) -> Any:
        """Launch on `args`; returns the result, or a tuple if `spec.results` has several.

        Arguments are all torch tensors on one device, or all numpy arrays, in the order, shapes and types of
        `spec.arguments`. Arguments that are dense, row major and aligned to 64 bytes are used in place. Other arguments
        are copied, and the first copy of each is logged. Results are written to `out` (a tuple if there are several
        results), which is then returned, or else to new tensors or arrays of the same library.

        On the CPU, the results are complete when this returns. On a GPU, the launch is added to torch's current stream,
        like an operator of torch. Only a kernel without a launch program is waited for, which the logger
        `dispatch_profiler.boo` reports at level DEBUG.

        Raises UsageError for arguments that do not fit, and RunError if the launch fails.
        """
        fast = self._fast
        if fast is not None:
            returned = fast(args, out)
            if returned is not None:
                return returned
        return self.checked_launch(args, out)

    @property
    def driver(self) -> str:
        """The driver of the kernel on the CPU, `local-sync` or `local-task`; empty before the first launch there."""
        kernel = self._loaded.get(TASK)
        return str(kernel.device.uri) if isinstance(kernel, LoadedKernel) else ""

    def on_threads(self) -> LoadedKernel:
        """The kernel on `local-task`, whichever driver launches use. Raises the errors of a launch."""
        kernel = self._loaded.get(TASK)
        if isinstance(kernel, LoadedKernel) and kernel.device.uri == TASK:
            return kernel
        results, device = len(self.spec.results), IreeDevice(TASK, workers=self._threads)
        return load(self._kernels.kernel(TASK), device, self._name, results)

    def program_on(self, uri: DeviceUri) -> CudaProgram | None:
        """The launch program on a GPU, after a launch there; None if IREE's runtime launches the kernel."""
        kernel = self._loaded.get(uri)
        return kernel if isinstance(kernel, CudaProgram) else None

    def _forget_devices(self) -> None:
        self._lock = threading.Lock()
        #: Device that the kernel was compiled for -> the loaded kernel.
        self._loaded: dict[DeviceUri, LoadedKernel | CudaProgram] = {}
        self._fast: FastLaunch | None = None
        self._fast_for: _FastKey | None = None
        self._every_fast: dict[_FastKey, FastLaunch | None] = {}
        #: Launches on the CPU for callers whose tensors are known to fit; None before the first launch there.
        self.launch_at: LaunchAt | None = None

    # -- everything that a fast launch leaves out ---------------------------------------------

    def checked_launch(self, args: tuple[Any, ...], out: Any) -> Any:
        """Launch with all checks and the necessary copies, and prepare the next launch to be fast."""
        specs, results = self.spec.arguments, self.spec.results
        if len(args) != len(specs):
            names = ", ".join(each.name for each in specs)
            raise UsageError(f"{self._name} takes {len(specs)} arguments ({names}), but got {len(args)}")
        outs = self._outs(out)
        library = self._library((*args, *outs))
        inputs = [self._input(library, *each) for each in zip(args, specs, strict=True)]
        targets = self._targets(library, outs, inputs)

        ordered = [
            pair
            for arrays, of in ((inputs, specs), (targets, results))
            for pair in sorted(zip(arrays, of, strict=True), key=lambda pair: pair[1].position)
        ]

        def make_arguments(kernel: LoadedKernel) -> Any:
            passed = rt.VmVariantList(len(ordered))
            for array, spec in ordered:
                passed.push_ref(library.buffer_view(kernel.device, array, spec))
            return passed

        kernel = self._kernel(library.uri, make_arguments)
        if isinstance(kernel, CudaProgram):
            library.launch(kernel, [array for array, _ in ordered])
        else:
            library.before_launch()
            kernel.run(make_arguments(kernel))
        for given, target in zip(outs, targets, strict=False):
            if given is target:
                library.note_write(given)
            else:
                library.copy(target, given)
        self._prepare_fast(library, kernel)
        if out is not None:
            return out
        return targets[0] if len(results) == 1 else tuple(targets)

    def _prepare_fast(self, library: ArrayLibrary, kernel: LoadedKernel | CudaProgram) -> None:
        """Prepare fast launches for this library and device. Keep other ones, for programs that alternate."""
        key = type(library), library.uri
        if self._fast_for != key:
            if key not in self._every_fast:
                self._every_fast[key] = library.fast_launch(kernel, self.spec)
                if isinstance(kernel, LoadedKernel) and library.uri == TASK:
                    self.launch_at = launch_at(kernel, self.spec)
            self._fast, self._fast_for = self._every_fast[key], key

    def _kernel(self, uri: DeviceUri, make_arguments: MakeArguments) -> LoadedKernel | CudaProgram:
        """The kernel on a device, loaded once."""
        loaded = self._loaded.get(uri)
        if loaded is not None:
            return loaded
        with self._lock:
            if uri not in self._loaded:
                kernel, count = self._kernels.kernel(uri), len(self.spec.results)
                self._loaded[uri] = (
                    load_on_host(kernel, self._name, count, self._threads, self._choices, make_arguments)
                    if uri.is_local
                    else load_on_gpu(kernel, uri, self.spec)
                )
            return self._loaded[uri]

    def _outs(self, out: Any) -> Sequence[Any]:
        """`out` as a sequence; empty for None."""
        if out is None:
            return ()
        count = len(self.spec.results)
        if count == 1:
            return (out,)
        if not isinstance(out, (tuple, list)) or len(out) != count:
            names = ", ".join(each.name for each in self.spec.results)
            got = f"{len(out)} elements" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
            raise UsageError(f"out of {self._name} must be a tuple of {count} ({names}), but got {got}")
        return out

    def _library(self, arrays: Sequence[Any]) -> ArrayLibrary:
        torch = sys.modules.get("torch")
        if torch is not None and all(isinstance(each, torch.Tensor) for each in arrays):
            from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors

            return TorchTensors(arrays[0].device)
        if all(isinstance(each, np.ndarray) for each in arrays):
            return NumpyArrays()
        got = ", ".join(f"{type(each).__module__}.{type(each).__qualname__}" for each in arrays)
        raise UsageError(
            f"{self._name} takes only torch tensors or only numpy arrays, but got {got}",
            hint="convert them: torch.from_numpy(array), tensor.numpy() or numpy.asarray(value)",
        )

    def _input(self, library: ArrayLibrary, array: Any, spec: TensorSpec) -> Any:
        """`array`, or a copy that the device can use."""
        library.check(array, spec, f"argument {spec.name} of {self._name}")
        obstacle = library.obstacle(array)
        if not obstacle:
            return array
        self._log_copy(library, f"argument {spec.name}", obstacle)
        copy = library.empty(spec)
        library.copy(array, copy)
        return copy

    def _targets(self, library: ArrayLibrary, outs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The arrays that the kernel writes to: each of `outs`, or a new array if it is missing or cannot be used."""
        if not outs:
            return [library.empty(spec) for spec in self.spec.results]
        targets: list[Any] = []
        for given, spec in zip(outs, self.spec.results, strict=True):
            what = f"out ({spec.name})"
            library.check(given, spec, f"{what} of {self._name}")
            library.check_writable(given, f"{what} of {self._name}")
            obstacle = library.obstacle(given)
            if not obstacle:
                start, end = library.span(given)
                others = map(library.span, (*inputs, *targets))
                is_shared = any(start < behind and begin < end for begin, behind in others)
                obstacle = "it shares memory with an argument or another result" if is_shared else ""
            if obstacle:
                self._log_copy(library, what, obstacle)
            targets.append(library.empty(spec) if obstacle else given)
        return targets

    def _log_copy(self, library: ArrayLibrary, what: str, obstacle: str) -> None:
        """Log the first copy of this tensor for this reason."""
        if (what, obstacle) not in self._logged:
            self._logged.add((what, obstacle))
            level = logging.INFO if library.expects_copies else logging.WARNING
            _LOGGER.log(level, "%s: %s is copied, because %s", self._name, what, obstacle)


_launchables: weakref.WeakSet[Launchable] = weakref.WeakSet()
#: Kernels of the parent process, which are never destroyed, because their devices cannot be.
_kept: list[object] = []


def _after_fork() -> None:
    """In a forked child: load kernels again, on the child's own devices."""
    for launchable in list(_launchables):
        _kept.append((launchable._loaded, launchable._every_fast, launchable.launch_at))
        launchable._forget_devices()


os.register_at_fork(after_in_child=_after_fork)
