"""Export of figures as SVG and PNG files, drawn by plotly in a browser that kaleido controls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dispatch_profiler.command import track
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.profiler.report.html.comparison import comparison
from dispatch_profiler.profiler.report.html.distribution import distribution
from dispatch_profiler.profiler.report.html.groups import Group, provider_names
from dispatch_profiler.profiler.report.html.heat_map import heat_maps
from dispatch_profiler.profiler.report.html.roofline import roofline, scaling
from dispatch_profiler.profiler.report.html.style import Figure, plotly_script

FORMATS = ("svg", "png")
#: Size in pixels and scale of a PNG. 700 px are one column of text at 96 dpi.
_WIDTH, _SCALE = 700, 3
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 120
_HINT = "python -m pip install 'kaleido>=1.0', and Chrome or Chromium on the PATH"


def figures(groups: Sequence[Group]) -> Iterator[tuple[str, Figure]]:
    """Every figure of the report with its file name without a suffix."""
    drawn: list[tuple[str, Figure | None]] = [
        ("roofline", roofline(groups)),
        ("comparison", comparison(groups)),
        *(
            (_file_name(f"speed_over_{size}_{panel}"), figure)
            for panel, sizes in scaling(groups).items()
            for size, figure in sizes.items()
        ),
    ]
    providers = provider_names(groups)
    for number, group in enumerate(groups, start=1):
        # The number distinguishes labels that differ only in unsafe characters.
        tail = f"{number:03}_{_file_name(group.label)}"
        maps = heat_maps(group).items()
        drawn += [
            (f"heat_map_{tail}" + (f"_{_file_name(form)}" if len(maps) > 1 else ""), each)
            for form, each in maps
        ]
        drawn.append((f"samples_{tail}", distribution(group, providers)))
    for name, figure in drawn:
        if figure is not None:
            yield name, figure


def _file_name(text: str) -> str:
    return _UNSAFE.sub("_", text)[:_LONGEST_NAME]


def export(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write each figure as SVG and PNG into `folder`, which is created if missing; returns the paths.

    Raises MissingDependency without kaleido or a browser, UsageError if `folder` is a file.
    """
    try:
        import kaleido
    except ImportError as error:
        raise MissingDependency("--figures requires kaleido", hint=_HINT) from error
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--figures: {folder} is not a folder")
    named = list(figures(groups))
    written = []
    with _browser(kaleido):
        for name, figure in track(named, len(named), "Drawing"):
            for format_ in FORMATS:
                path = folder / f"{name}.{format_}"
                options = {"format": format_, "width": _WIDTH, "height": figure["layout"]["height"]}
                scale = {"scale": _SCALE} if format_ == "png" else {}
                write_atomic(path, _drawn(kaleido, figure, {**options, **scale}))
                written.append(path)
    return written


@contextlib.contextmanager
def _browser(kaleido: object) -> Iterator[None]:
    """Keep one browser open for all figures."""
    try:
        # The page's own plotly; nothing is downloaded.
        drawing = {"plotlyjs": plotly_script(), "mathjax": False}
        kaleido.start_sync_server(silence_warnings=True, **drawing)  # type: ignore[attr-defined]
    except Exception as error:  # kaleido passes on what its browser's library raises
        raise MissingDependency(f"--figures could not start a browser: {error}", hint=_HINT) from error
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)  # type: ignore[attr-defined]


def _drawn(kaleido: object, figure: Figure, options: dict[str, object]) -> bytes:
    try:
        drawn = kaleido.calc_fig_sync(figure, opts=options)  # type: ignore[attr-defined]
    except Exception as error:  # of kaleido and of its browser's library, without a common base class
        if "chrome" in type(error).__name__.lower():
            raise MissingDependency("--figures requires Chrome or Chromium", hint=_HINT) from error
        raise ToolError(f"kaleido failed to draw a figure: {error}") from error
    return drawn.encode() if isinstance(drawn, str) else bytes(drawn)
