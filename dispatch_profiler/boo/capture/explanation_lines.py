"""An explanation in one short line for each kernel, those first for which tuning is expected to save the most time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dispatch_profiler.boo.backends.explaining import Explanation, RegionReport
from dispatch_profiler.boo.kernels.uses import KernelOrigin
from dispatch_profiler.console.streams import fold
from dispatch_profiler.operations.short_names import short_name

#: No line is longer.
WIDTH = 100
#: How many times as fast a kernel is roughly expected to become by tuning, by where it comes from. What rules choose took 1.02
#: to 1.09 times as long as the best of searches, on 2 and 16 threads; forms take 1.4 times as long as microkernels. Entries for
#: other epilogues and threads were not measured as a group: they are estimates.
_EXPECTED = {
    KernelOrigin.ENTRY: 1.0,
    KernelOrigin.OTHER_THREADS: 1.1,
    KernelOrigin.NEAR: 1.05,
    KernelOrigin.PREDICTED: 1.05,
    KernelOrigin.UNTUNED: 1.4,
}
_TORCH = "left to torch"
_CONNECTS = "connects kernels"


@dataclass(frozen=True)
class ExplainedKernel:
    """Equal regions of a model: how often they occur, the seconds of all their calls, and what computes them.

    `seconds` and `torch_seconds` are None without a measurement. `expected` is how many times as fast tuning is expected to
    make it; None where there is nothing to tune.
    """

    name: str
    count: int
    origin: str
    reason: str
    seconds: float | None = None
    torch_seconds: float | None = None
    expected: float | None = None

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
        groups.setdefault(
            (each.operation, each.configuration, each.reason, each.root, each.graph), []
        ).append(each)
    found = [_kernel(group) for group in groups.values()]
    return sorted(found, key=lambda each: (each.saved, each.seconds or 0.0), reverse=True)


def _kernel(group: Sequence[RegionReport]) -> ExplainedKernel:
    first = group[0]
    if first.operation is None:
        return ExplainedKernel(f"{first.root} ({first.nodes[0]})", len(group), _TORCH, first.reason)
    times = [each.seconds for each in group if each.seconds is not None]
    beside = [each.torch_seconds for each in group if each.torch_seconds is not None]
    seconds = sum(times) if len(times) == len(group) else None
    torch_seconds = sum(beside) if len(beside) == len(group) else None
    name, use = short_name(first.operation), first.use
    if use is None:
        return ExplainedKernel(name, len(group), _CONNECTS, "", seconds, torch_seconds)
    expected = _EXPECTED[use.origin] if use.is_missed else 1.0
    return ExplainedKernel(name, len(group), use.origin.value, use.reason, seconds, torch_seconds, expected)


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
    yield _columns("share", "us", "over torch", "tuning", "kernel from", "operation")
    yield from (_line(each, total) for each in kernels)


def _line(kernel: ExplainedKernel, total: float) -> str:
    times = f" x{kernel.count}" if kernel.count > 1 else ""
    share = f"{100.0 * kernel.seconds / total:.1f} %" if kernel.seconds is not None and total else "-"
    took = "-" if kernel.seconds is None else f"{1e6 * kernel.seconds:.0f}"
    over = f"{kernel.torch_seconds / kernel.seconds:.2f}x" if kernel.seconds and kernel.torch_seconds else "-"
    gain = f"{kernel.expected:.2f}x" if kernel.expected is not None and kernel.expected > 1.0 else ""
    about = f": {kernel.reason}" if kernel.reason and kernel.origin == _TORCH else ""
    return _columns(share, took, over, gain, kernel.origin, f"{kernel.name}{times}{about}")


def _columns(share: str, took: str, over: str, gain: str, origin: str, name: str) -> str:
    line = f"{share:>7} {took:>7} {over:>10} {gain:>6}  {origin:<22}  {name}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
