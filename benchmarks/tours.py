#!/usr/bin/env python3
"""The three tutorials, taken as new users take them: how long until the first proof, and what stops a reader.

    python benchmarks/tours.py [--quick] [--json PATH] [--torch=REQUIREMENT] [--keep=FOLDER] [TOUR ...]

Each tour has a clone of this checkout, an empty home folder, empty caches and a new virtual environment. It installs the
package with the lines of docs/index.md and the extras that its tutorial names, then runs the tutorial's lines as they
stand, in one shell, and saves the files that it shows. A line that ends with another exit status than the stated one
counts as a stop, and the tour goes on. The time until the first proof includes the installation.

Commit changes first: a clone has what is committed. On a machine without an NVIDIA GPU, `--torch` names a build of
PyTorch for CPUs, which is installed before the package. `--quick` takes the tour of shapes only.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._pages import Line, Page, Saved
from benchmarks._table import Row, at_most, exit_with, make_parser, report

ROOT = Path(__file__).parent.parent
#: Seconds until the first proof, with the installation.
GOAL = 600.0
#: Seconds after which a tour is ended; the lines that have not run then count as stops.
LIMIT = 1800.0
#: How many of the last lines of what a command printed are shown if it stops a reader.
SHOWN = 20
#: Variables that a tour inherits: how to reach an index of packages, how to print, where programs are. The others could
#: hide what a new user runs into.
INHERITED = re.compile(r"(PIP_|UV_|SSL_|LC_).*|.*_PROXY|.*_CA_BUNDLE|LANG|TZ|PATH|USER", re.IGNORECASE)
#: Begins a line of the shell that says which step has ended, and with which status.
_ENDED = re.compile(r"\x1e(\d+) (\d+)\n$")
_EXTRAS = re.compile(r"with the extras? ((?:`\w+`(?:, | and )?)+)")
_INSTALLED = re.compile(r"-m pip install .*\[([\w,]+)\]")


@dataclass(frozen=True)
class Tour:
    """A tutorial, and what its first verified and measured result looks like."""

    name: str
    proof: str

    @property
    def path(self) -> Path:
        """Its page, in a checkout."""
        return Path("docs/tutorials", f"{self.name}.md")


TOURS = (
    Tour("shapes", r"^ .* SUCCESS +tile_config_"),
    Tour("model", r"^ +after tuning +\d"),
    Tour("log", r"^\[Benchmark\]: \w+, .*: (kept|interval overlaps|slower)"),
)


@dataclass(frozen=True)
class Ran:
    """A line, the exit status with which it ended (None if the tour ended before), and its seconds."""

    line: Line
    status: int | None
    seconds: float

    @property
    def is_stop(self) -> bool:
        """Whether a reader would stop here."""
        return self.status != self.line.status


@dataclass(frozen=True)
class Taken:
    """A tour that was taken: its lines, and the seconds until the first proof was printed (None if it never was)."""

    name: str
    ran: tuple[Ran, ...]
    proven: float | None

    def rows(self) -> list[Row]:
        """What is claimed of it."""
        return [
            Row(f"{self.name}: seconds of the whole tour", sum(each.seconds for each in self.ran), "s", "any", True),
            at_most(
                f"{self.name}: first proof, with the installation", self.proven or float("inf"), "s", GOAL
            ),
            at_most(f"{self.name}: stops", sum(each.is_stop for each in self.ran), "lines", 0),
        ]  # fmt: skip


def extras_of(tutorial: Page) -> set[str]:
    """The extras of the package that a tutorial requires. Raises ValueError if it names none."""
    found = _EXTRAS.search(tutorial.text)
    if found is None:
        raise ValueError("the tutorial does not say with which extras the package is installed")
    return set(re.findall(r"`(\w+)`", found[1]))


def installation(index: Page, extras: set[str], torch: str | None = None) -> list[Line]:
    """The lines that install the package with `extras`. `torch` is a requirement that is installed before, if the
    extras have torch. Raises ValueError if no line installs exactly these extras."""
    lines: list[Line] = []
    is_installed = False
    for line in index.section("Install").lines():
        found = _INSTALLED.search(line.text)
        if found is None:
            lines.append(line)
        elif set(found[1].split(",")) == extras:
            if torch is not None and "torch" in extras:
                lines.append(Line(f"python -m pip install {shlex.quote(torch)}"))
            lines.append(line)
            is_installed = True
    if not is_installed:
        raise ValueError(f"no line of the section 'Install' has the extras {', '.join(sorted(extras))}")
    return lines


def script(steps: Sequence[Line | Saved]) -> str:
    """The steps for one shell, which says after each line how it has ended."""
    parts = []
    for number, step in enumerate(steps):
        if isinstance(step, Saved):
            parts.append(f"cat >{shlex.quote(step.name)} <<'END OF FILE'\n{step.text}END OF FILE\n")
        else:
            parts.append(f"{step.text}\nprintf '\\036%d %d\\n' {number} $?\n")
    return "".join(parts)


def environment(home: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What the lines of a tour see of the variables `given`: an empty home, and no environment of Python."""
    kept = {name: value for name, value in given.items() if INHERITED.fullmatch(name)}
    own = str(Path(sys.prefix, "bin"))
    path = [each for each in kept["PATH"].split(os.pathsep) if each != own or sys.prefix == sys.base_prefix]
    temporary = home / "tmp"
    temporary.mkdir(parents=True)
    return {**kept, "PATH": os.pathsep.join(path), "HOME": str(home), "TMPDIR": str(temporary)}


@contextmanager
def shell(text: str, folder: Path, variables: Mapping[str, str]) -> Iterator[TextIO]:
    """What a shell prints that runs `text`. All its processes are ended with it, also after LIMIT."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        process = subprocess.Popen(
            ["timeout", "--kill-after=10", f"{LIMIT:g}", "bash", "--noprofile", "--norc", file.name],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait()


def take(
    tour: Tour, steps: Sequence[Line | Saved], folder: Path, variables: Mapping[str, str], log: TextIO
) -> Taken:
    """Take the steps, say how each ended, and write what they print, with the second at which it came."""
    waiting = {number: step for number, step in enumerate(steps) if isinstance(step, Line)}
    ran: list[Ran] = []
    printed: list[str] = []
    start = before = time.monotonic()
    proven = None
    with shell(script(steps), folder, variables) as output:
        for text in output:
            now = time.monotonic()
            ended = _ENDED.search(text)
            if ended is None:
                log.write(f"{now - start:7.1f}  {text}")
                printed = [*printed[1 - SHOWN :], text]
                if proven is None and re.search(tour.proof, text):
                    proven = now - start
                    print(f"  {'':>6}  first proof after {proven:.1f} s", flush=True)
                continue
            ran.append(Ran(waiting.pop(int(ended[1])), int(ended[2]), now - before))
            show(ran[-1], printed)
            printed, before = [], now
    for line in waiting.values():
        ran.append(Ran(line, None, time.monotonic() - before))
        show(ran[-1], printed)
        printed, before = [], time.monotonic()
    return Taken(tour.name, tuple(ran), proven)


def show(ran: Ran, printed: Sequence[str]) -> None:
    """Print a line with its seconds; after a stop, also the status and what was printed last."""
    print(f"  {ran.seconds:6.1f}  $ {ran.line.text}", flush=True)
    if ran.is_stop:
        status = "did not end" if ran.status is None else f"ended with status {ran.status}"
        print(f"          STOP: {status} instead of {ran.line.status}")
        print("".join(f"          | {each}" for each in printed), end="", flush=True)


def steps_of(tour: Tour, checkout: Path, torch: str | None) -> list[Line | Saved]:
    """Install, then follow the tutorial."""
    tutorial = Page.read(checkout / tour.path)
    index = Page.read(checkout / "docs/index.md")
    return [*installation(index, extras_of(tutorial), torch), *tutorial.steps()]


def taken_in(folder: Path, tour: Tour, torch: str | None) -> Taken:
    """Take a tour in an empty folder."""
    checkout = folder / "dispatch_profiler"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    print(f"{tour.name}: {tour.path}", flush=True)
    variables = environment(folder / "home", os.environ)
    with (folder / "output.txt").open("w", buffering=1) as log:
        return take(tour, steps_of(tour, checkout, torch), checkout, variables, log)


@contextmanager
def folder_of(tour: Tour, keep: Path | None) -> Iterator[Path]:
    """An empty folder: a new one in `keep`, or one that is removed afterwards."""
    if keep is not None:
        folder = keep.resolve() / tour.name
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"tour_{tour.name}_", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def main() -> int:
    """Print the lines and the table; exit status 1 if a tour was stopped or came to no proof in time."""
    parser = make_parser(__doc__.splitlines()[0])
    names = [tour.name for tour in TOURS]
    parser.add_argument("tours", nargs="*", metavar="TOUR", help=f"default: {' '.join(names)}")
    parser.add_argument(
        "--torch", metavar="REQUIREMENT", help="install this before the package, where torch is needed"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave each tour there, with its output.txt")  # fmt: skip
    given = parser.parse_args()
    if unknown := set(given.tours) - set(names):
        parser.error(f"no tour is called {', '.join(sorted(unknown))}; available: {', '.join(names)}")
    chosen = given.tours or (names[:1] if given.quick else names)
    for name in chosen if given.keep is not None else ():
        if (given.keep / name).exists():
            parser.error(f"--keep: {given.keep / name} exists already; name another folder")
    rows = []
    for tour in [each for each in TOURS if each.name in chosen]:
        with folder_of(tour, given.keep) as folder:
            rows += taken_in(folder, tour, given.torch).rows()
    return report(rows, given.json)


if __name__ == "__main__":
    exit_with(main)
