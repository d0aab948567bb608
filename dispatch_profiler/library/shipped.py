"""Libraries of tuned kernels that come with the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.library.library import library_file
from dispatch_profiler.targets import CpuTarget, Target, host_cpu

_SHIPPED = Path(str(resources.files("dispatch_profiler.library") / "shipped"))


def _is_host_with_avx512(target: Target) -> bool:
    return target.name == CpuTarget().name and "avx512f" in host_cpu().features


#: Name of each library -> whether it was measured on the kind of hardware that a target is for.
_FITS: Mapping[str, Callable[[Target], bool]] = {
    "h200": lambda target: target.name == "cuda:sm_90",
    "xeon-avx512": _is_host_with_avx512,
}


def shipped_libraries() -> tuple[str, ...]:
    """Their names: the processors that they were measured on."""
    return tuple(sorted(each.name for each in _SHIPPED.iterdir() if each.is_dir()))


def shipped_for(target: Target) -> Path | None:
    """The folder of the shipped library for the hardware of `target`; None if no library is shipped for it."""
    return next((_SHIPPED / name for name, fits in _FITS.items() if fits(target)), None)


def shipped_name(folder: Path) -> str:
    """The name of the shipped library in `folder`; empty for other folders."""
    return folder.name if folder.parent == _SHIPPED else ""


def is_shipped(path: Path) -> bool:
    """Whether `path` is the name of a shipped library, and nothing else has that name."""
    return str(path) in shipped_libraries() and not path.exists()


def find_library(path: Path) -> Path:
    """`path`, or the folder of the shipped library with that name. Raises UsageError if neither exists."""
    if is_shipped(path):
        return _SHIPPED / path
    if not path.exists():
        raise UsageError(
            f"{path}: no such library",
            hint=f"name a folder with a library.json, or a shipped library; {did_you_mean(str(path), shipped_libraries())}",
        )
    if path.is_dir() and not library_file(path).exists():
        inside = sorted(each.parent for each in path.glob(f"*/{library_file(path).name}"))
        hint = f"{inside[0]} has one" if inside else "tune and merge write libraries (docs/library.md)"
        raise UsageError(f"{path} is no library: it has no {library_file(path).name}", hint=hint)
    return path
