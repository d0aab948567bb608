"""An explanation in one short line for each kernel, those first for which tuning is expected to save the most time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dispatch_profiler.boo.backends.explaining import Explanation, RegionReport
from dispatch_profiler.boo.kernels.uses import KernelOrigin
from dispatch_profiler.console.streams import fold
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.short_names import label

#: No line is longer.
WIDTH = 100
#: How many times as fast a kernel is roughly expected to become by tuning, by where it comes from. What rules choose took 1.02
#: to 1.09 times as long as the best of searches, on 2 and 16 threads; forms take 1.4 times as long as microkernels. Entries for
#: other epilogues and threads were not measured as a group: they are estimates.
_EXPECTED = {
    KernelOrigin.ENTRY: 1.0,
    KernelOrigin.SIZES: 1.0,
    KernelOrigin.OTHER_THREADS: 1.1,
    KernelOrigin.NEAR: 1.05,
    KernelOrigin.PREDICTED: 1.05,
    KernelOrigin.UNTUNED: 1.4,
    KernelOrigin.SPEC: 1.0,
}
_TORCH = "left to torch"
_CONNECTS = "connects"
#: The columns before the name of a kernel.
_COLUMNS = "{:>5}{:>7}{:>7}{:>7}  {:<13} "


@dataclass(frozen=True)
class ExplainedKernel:
    """Equal regions of a model: how often they occur, the seconds of all their calls, and what computes them.

    `seconds` and `torch_seconds` are None without a measurement. `expected` is how many times as fast tuning is expected to
    make it; None where there is nothing to tune. `operation` is None if torch computes it; `modules` are the paths of the
    modules of the model.
    """

    name: str
    count: int
    origin: str
    reason: str
    seconds: float | None = None
    torch_seconds: float | None = None
    expected: float | None = None
    operation: Operation | None = None
    modules: tuple[str, ...] = ()

    @property
    def saved(self) -> float:
        """Seconds that tuning is expected to save."""
        if self.seconds is None or self.expected is None:
            return 0.0
        return self.seconds * (1.0 - 1.0 / self.expected)


def kernels_of(explanation: Explanation) -> list[ExplainedKernel]:
    """The kernels of a model and what torch computes, the largest expected saving first, then the largest time."""
    groups: dict[tuple[object, ...], list[RegionReport]] = {}
    for each in explanation.regions:
        # Why a region ends where it does makes no other kernel.
        reason = "" if each.is_fused else each.reason
        key = each.operation, each.configuration, reason, each.root, each.graph
        groups.setdefault(key, []).append(each)
    found = [_kernel(group) for group in groups.values()]
    return sorted(found, key=lambda each: (each.saved, each.seconds or 0.0), reverse=True)


def _kernel(group: Sequence[RegionReport]) -> ExplainedKernel:
    first, count = group[0], len(group)
    modules = tuple(dict.fromkeys(each.module for each in group if each.module))
    if first.operation is None:
        name = f"{first.root} ({first.module or first.nodes[0]})"
        return ExplainedKernel(name, count, _TORCH, first.reason, modules=modules)
    times = [each.seconds for each in group if each.seconds is not None]
    beside = [each.torch_seconds for each in group if each.torch_seconds is not None]
    seconds = sum(times) if len(times) == len(group) else None
    torch_seconds = sum(beside) if len(beside) == len(group) else None
    name, use, operation = label(first.operation, modules), first.use, first.operation
    if use is None:
        return ExplainedKernel(
            name, count, _CONNECTS, "", seconds, torch_seconds, operation=operation, modules=modules
        )
    expected = _EXPECTED[use.origin] if use.is_missed else 1.0
    return ExplainedKernel(
        name, count, use.origin.value, use.reason, seconds, torch_seconds, expected, operation, modules
    )


def lines_of(explanation: Explanation) -> Iterator[str]:
    """A title, and a line for each of `kernels_of`."""
    kernels = kernels_of(explanation)
    total = sum(each.seconds or 0.0 for each in kernels)
    ours = sum(each.count for each in kernels if each.origin != _TORCH)
    saved = sum(each.saved for each in kernels)
    title = f"{ours} of {sum(each.count for each in kernels)} regions are computed by kernels of this package"
    if total:
        title += f", in {1e3 * total:.3g} ms"
        title += (
            f"; tuning is expected to save {100.0 * saved / total:.0f} %"
            if saved
            else "; nothing is left to tune"
        )
    yield title
    for each in explanation.choices:
        yield from fold(str(each), WIDTH).splitlines()
    yield _COLUMNS.format("%", "us", "torch", "tuning", "kernel from") + "operation"
    yield from (_line(each, total) for each in kernels)


def _line(kernel: ExplainedKernel, total: float) -> str:
    share = f"{100.0 * kernel.seconds / total:.1f}" if kernel.seconds is not None and total else "-"
    took = "-" if kernel.seconds is None else f"{1e6 * kernel.seconds:.0f}"
    over = f"{kernel.torch_seconds / kernel.seconds:.2f}x" if kernel.seconds and kernel.torch_seconds else "-"
    gain = f"{kernel.expected:.2f}x" if kernel.expected is not None and kernel.expected > 1.0 else ""
    columns = _COLUMNS.format(share, took, over, gain, kernel.origin)
    times = f" x{kernel.count}" if kernel.count > 1 else ""
    if kernel.operation is None:
        line = f"{columns}{kernel.name}{times}: {kernel.reason}"
        return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
    # How many modules there are is behind the name: it leaves more room for the path of the first.
    name = label(kernel.operation, kernel.modules[:1], WIDTH - len(columns) - len(times))
    return f"{columns}{name}{times}"
