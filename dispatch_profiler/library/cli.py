"""`dispatch-profiler library list|show|export|spec`: the content of a library of tuned kernels, and its conversion to other forms.

`library prove` and `library check`, which may measure, are in `tuner.commands`; `library merge` is in `merge_cli`.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    run,
    say,
    say_table,
    show,
    warn,
    warn_table,
    writable,
)
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import width_of
from dispatch_profiler.console.terminal import aligned
from dispatch_profiler.dispatches import Selection
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.library.entry import NO_SPEED, Entry, Estimate, Hardware, best_for, for_one_size
from dispatch_profiler.library.entry_rows import exported
from dispatch_profiler.library.library import (
    Library,
    find_library,
    is_shipped,
    shipped_libraries,
    spec_file,
)
from dispatch_profiler.library.short_selection import with_full_names
from dispatch_profiler.library.tuned import prove_hint
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.profiler.records.speedup import speedup_text
from dispatch_profiler.profiler.statistics.comparison import Ratio
from dispatch_profiler.targets import parse_target

PROG = "dispatch-profiler library"
#: Formats of export that are folders of kernels.
_CODE = ("c", "vmfb")
#: The actions that `dispatch_profiler.__main__` dispatches to other modules, with their arguments.
_ELSEWHERE = {
    "prove": "LIBRARY",
    "check": "LIBRARY",
    "merge": "ORIGINAL INCREMENTAL OUTPUT",
    "submit": "LIBRARY",
}


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "List, show, export, check, merge or submit a library of tuned kernels.",
        HelpPage(
            examples=(
                f"{prog} list tuned/final --operation-kind=conv2d",
                f"{prog} export tuned/final 'matmul_*' -o tuned.csv",
            )
        ),
        usage="%(prog)s ACTION [LIBRARY [OPERATION,...]] [options]",
    )
    parser.add_argument(
        "action", choices=[*_ACTIONS, *_ELSEWHERE],
        help="list: a table; show: all details of each entry; export: CSV or JSON; spec: write spec.mlir beside the "
        "library; prove: prove it for the installed compiler; check: list entries that cannot be used here; merge: take the "
        "entries of another library; submit: print a patch of the shipped libraries (library ACTION --help)",
    )  # fmt: skip
    parser.add_argument(
        "library", nargs="?", metavar="LIBRARY",
        help=f"folder with a library.json, or a shipped library: {', '.join(shipped_libraries())} "
        "(without it, list names the shipped libraries)",
    )  # fmt: skip
    parser.add_argument(
        "operations", nargs="?", default="", metavar="OPERATION,...",
        help="only operations whose full or short name matches a glob or a regular expression",
    )  # fmt: skip
    parser.add_argument(
        "--operation", dest="operation_option", default="", metavar="OPERATION,...", help="the same as OPERATION,..."
    )  # fmt: skip
    parser.add_argument(
        "--operation-kind", "--op-kind", default="", metavar="KIND,...",
        help="only these kinds, such as matmul or conv2d (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        choices=[*FORMATS, *_CODE],
        help="format of export: a table of the entries, or a folder with their kernels: c, object files with a C "
        "header, or vmfb, for IREE's runtime (default: by the suffix of --output, or csv)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="file, or folder of kernels, that export writes (default: standard output)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    if options.action in _ELSEWHERE:
        action = options.action
        raise UsageError(
            f"{action} comes first, then its options",
            hint=f"dispatch-profiler library {action} {_ELSEWHERE[action]}",
        )
    if options.library is None:
        return _list_shipped(options.action)
    if options.operation_option:
        if options.operations:
            raise UsageError("OPERATION,... and --operation are the same", hint="use one of them")
        options.operations = options.operation_option
    if options.action != "export" and (options.format or options.output):
        raise UsageError(
            f"{options.action} has no --format and no --output",
            hint=f"dispatch-profiler library export {options.library} writes CSV and JSON",
        )
    if options.action == "show" and not options.operations:
        raise UsageError(
            "show requires an operation", hint=f"dispatch-profiler library list {options.library} lists them"
        )
    library = Library.load(find_library(folder(options.library)))
    damaged = library.damaged if options.action in _SKIPPING_DAMAGED else ()
    every = library.sound if options.action in _SKIPPING_DAMAGED else library.entries
    selection = with_full_names(
        Selection.parse(options.operations, options.operation_kind),
        (entry.operation for entry in every),
        needs_one=options.action == "show",
    )
    entries = _chosen(every, selection)
    _ACTIONS[options.action](entries, options)
    for each in damaged:
        warn(f"{options.prog}: {each.reason}")
    for hint in prove_hints(entries, str(options.library)):
        say(f"hint: {hint}")
    return FAILED if damaged else SUCCESS


def _list_shipped(action: str) -> int:
    if action != "list":
        raise UsageError(
            f"{action} requires a library", hint="dispatch-profiler library list names the shipped libraries"
        )
    rows = []
    for name in shipped_libraries():
        library = Library.load(find_library(Path(name)))
        rows.append((name, counted(len(library), "entry"), "; ".join(library.machines)))
    show(_aligned(rows))
    return SUCCESS


def _chosen(entries: Sequence[Entry], selection: Selection) -> Sequence[Entry]:
    if not entries:
        return ()
    return selection.choose(entries, lambda entry: entry.operation.kind, lambda entry: entry.operation.name)


def _list(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    if entries:
        show(_aligned(table_rows(entries)))
    say(counted(len(entries), "entry"))


def _show(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    show("\n\n".join(_aligned(shown_rows(entry)) for entry in entries))


def _aligned(rows: Iterable[Sequence[str]]) -> str:
    """Columns for standard output, without the indentation that messages have."""
    return dedent(aligned(rows, width_of(sys.stdout)))


def _export(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    if options.format in _CODE:
        _export_code(entries, options)
        return
    output = writable("--output", options.output) if options.output else None
    suffix = output.suffix.removeprefix(".") if output is not None else ""
    rows = [_Exported.of(entry) for entry in entries]
    text = FORMATS[options.format or (suffix if suffix in FORMATS else "csv")](rows)
    if output is None:
        show(text.removesuffix("\n"))
    else:
        write_output(output, text)
        say(f"Writing {counted(len(entries), 'entry')} to {output}")
    _count_left_out(rows, options.library)


def _count_left_out(rows: Sequence[_Exported], library: Path | str) -> None:
    """Say how many entries no tuning spec can express, by reasons, and how to get these."""
    left_out = [each for each in rows if each.not_in_spec]
    if not left_out:
        return
    say(f"A tuning spec cannot have {len(left_out)} of {counted(len(rows), 'entry')} (column not_in_spec):")
    reasons = Counter(each.not_in_spec for each in left_out)
    say_table((f"{count} x", reason) for reason, count in reasons.most_common())
    say(_other_ways(library, {each.code_format for each in left_out}))


def _export_code(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    from dispatch_profiler.library.c_export import export_c, export_vmfbs  # they load the compiler

    if not options.output:
        raise UsageError(f"--format={options.format} writes a folder", hint="name it with -o FOLDER")
    output = folder(options.output)
    write = export_c if options.format == "c" else export_vmfbs
    exported = write(entries, output, origin=str(options.library))
    if exported.left_out:
        warn(f"{counted(len(exported.left_out), 'entry')} not exported:")
        warn_table(exported.left_out)
    say(f"Writing {counted(len(exported.kernels), 'kernel')} to {output}: README.txt says how to use them")


def _spec(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    from dispatch_profiler.library.spec_proof import make_spec  # it loads the compiler

    library = folder(options.library)
    if is_shipped(library):
        raise UsageError(
            f"{library} is a shipped library, which has its spec: {spec_file(find_library(library))}",
            hint=f"to change it, merge it into a folder: dispatch-profiler merge {library} OTHER FOLDER",
        )
    path = spec_file(library)
    of_one = for_one_size(entries)
    if others := len(entries) - len(of_one):
        warn(f"{counted(others, 'entry')} for several sizes left out: a tuning spec sets tiles for one size")
    # A spec tells operations apart, not machines.
    usable = [
        each
        for target in dict.fromkeys(entry.provenance.target for entry in of_one)
        for each in best_for(
            (entry for entry in of_one if entry.provenance.target == target),
            Hardware.here(parse_target(target)),
        )
    ]
    spec = make_spec(usable)
    if spec.left_out:
        _list_left_out(spec.left_out, options.library)
    if not spec.text:
        path.unlink(missing_ok=True)
        raise UsageError(f"no entry of {options.library} can be part of a tuning spec")
    listed = [f"// Left out: {entry.dispatch.name}: {reason}\n" for entry, reason in spec.left_out]
    write_atomic(path, "".join([*listed, spec.text]))
    say(f"Writing {counted(len(spec.entries), 'entry')} to {path}, each proven by compiling with it")


def _list_left_out(left_out: Sequence[tuple[Entry, str]], library: Path | str) -> None:
    """Warn of the entries that a tuning spec lacks, each with the format of `export` that has its code and the reason."""
    from dispatch_profiler.library.c_export.kernels import export_format  # it loads the compiler

    formats = [f"--format={export_format(entry)}" for entry, _ in left_out]
    warn(f"{counted(len(left_out), 'entry')} cannot be part of a tuning spec:")
    warn_table(
        [
            (entry.dispatch.name, format_, reason)
            for (entry, reason), format_ in zip(left_out, formats, strict=True)
        ]
    )
    warn(_other_ways(library, {export_format(entry) for entry, _ in left_out}))


def _other_ways(library: Path | str, formats: Iterable[str]) -> str:
    """How to get entries that no tuning spec has."""
    options = " or ".join(f"--format={each}" for each in sorted(formats) if each)
    used = "Launches and torch.compile use them from the library"
    return (
        used
        if not options
        else (f"{used}; dispatch-profiler library export {library} {options} -o FOLDER writes their code")
    )


#: Actions that show sound entries beside damaged entries. Others would write files in which entries are missing.
_SKIPPING_DAMAGED = ("list", "show")
_ACTIONS = {"list": _list, "show": _show, "export": _export, "spec": _spec}


def prove_hints(entries: Sequence[Entry], library: str) -> list[str]:
    """A sentence for each compiler other than the installed one that entries of `library` were measured with."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.software, []).append(entry)
    hints = []
    for (target, iree), group in groups.items():
        installed = installed_revision(target)
        if installed and not group[0].is_of_compiler(installed):
            hints.append(
                f"{counted(len(group), 'entry')} for {target} measured with {iree}, but {installed} is installed; "
                + prove_hint(library)
            )
    return hints


def installed_revision(target: str) -> str:
    """The revision of the installed compiler for `target`; empty if it is not installed."""
    try:
        parsed = parse_target(target)
        return compiler_for(parsed).revision if find_spec("iree.compiler") else ""
    except (DispatchProfilerError, ModuleNotFoundError):
        return ""


# -- listing ---------------------------------------------------------------------------------------

# Entries of a library as text: a table, one entry in full, CSV and JSON.


HEADER = ("operation", "configuration", "GFLOP/s", "vs untuned")
_COLUMNS = (
    "operation", "kind", "arguments", "configuration", "configuration_fields", "gflops", "gflops_low",
    "gflops_high", "speedup", "speedup_low", "speedup_high", "target", "iree", "device", "cpu", "cores", "gpu",
    "driver", "system", "when", "flags", "module_key", "cpu_level", "threads", "not_in_spec", "code_format", "sizes",
)  # fmt: skip


def table_rows(entries: Iterable[Entry]) -> list[Sequence[str]]:
    """The header and a row for each entry, with its hardware if there are entries for several."""
    every = list(entries)
    several = len({each.hardware for each in every}) > 1
    rows = [
        (
            *(each.title, each.dispatch.configuration.name, _gflops(each), _speedup(each)),
            *((each.hardware.text,) if several else ()),
        )
        for each in every
    ]
    return [(*HEADER, "tuned for") if several else HEADER, *rows]


def shown_rows(entry: Entry) -> list[Sequence[str]]:
    """Name and value of everything that is known of an entry."""
    origin = entry.provenance
    rows = [
        ("operation", entry.operation.name),
        ("short name", short_name(entry.operation)),
        *_of_sizes(entry),
        ("configuration", entry.dispatch.configuration.name),
        *((f"  {name}", value) for name, value in entry.dispatch.configuration.fields().items()),
        ("GFLOP/s", _gflops(entry, with_interval=True)),
        ("vs untuned", _speedup(entry)),
        ("target", origin.target),
        ("IREE", origin.iree),
        ("device", origin.device),
        ("machine", origin.machine.text),
        ("tuned for", entry.hardware.text),
        ("measured", origin.when),
        ("flags", shlex.join(origin.flags)),
        ("module key", origin.module_key),
    ]
    return [(name, value) for name, value in rows if value]


def _of_sizes(entry: Entry) -> Iterator[tuple[str, str]]:
    """The sizes of an entry for several, and the times that its speed is the geometric mean of."""
    if entry.sizes is not None:
        yield "sizes", entry.sizes.text
    for each in entry.measured:
        microseconds = f"{1000 * each.milliseconds:.4g} us, untuned {1000 * each.untuned:.4g} us"
        yield f"  {each.size}", microseconds


@dataclass(frozen=True)
class _Exported:
    """An entry with why no tuning spec can express it, if so, and the format of `export` that has its code."""

    entry: Entry
    not_in_spec: str
    code_format: str

    @staticmethod
    def of(entry: Entry) -> _Exported:
        from dispatch_profiler.library.c_export.kernels import export_format  # both load the compiler
        from dispatch_profiler.library.spec_proof import reason_against_spec

        return _Exported(entry, reason_against_spec(entry), export_format(entry))


def to_csv(rows: Iterable[_Exported]) -> str:
    """CSV with a row for each entry; an unknown end of an interval is empty."""
    return csv_text(_COLUMNS, map(_csv_row, rows))


def to_json(rows: Iterable[_Exported]) -> str:
    """A JSON list of entries, each with its whole provenance."""
    return json.dumps([_json_row(row) for row in rows], indent=1) + "\n"


def _json_row(row: _Exported) -> dict[str, object]:
    return {**exported(row.entry), "not_in_spec": row.not_in_spec, "code_format": row.code_format}


#: Name of a format -> its writer.
FORMATS = {"csv": to_csv, "json": to_json}


def _csv_row(row: _Exported) -> dict[str, object]:
    entry = row.entry
    origin, configuration = entry.provenance, entry.dispatch.configuration
    machine = origin.machine
    values = (
        entry.operation.name,
        entry.operation.kind,
        _pairs(entry.dispatch.arguments()),
        configuration.name,
        _pairs(configuration.fields()),
        *_ends(entry.gflops),
        *_ends(entry.speedup),
        *(origin.target, origin.iree, origin.device),
        *(machine.cpu, machine.cores, machine.gpu, machine.driver, machine.system),
        *(origin.when, shlex.join(origin.flags), origin.module_key),
        *(entry.hardware.cpu, entry.hardware.threads or ""),
        *(row.not_in_spec, row.code_format, entry.sizes.text if entry.sizes else ""),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _pairs(values: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _ends(estimate: Estimate) -> tuple[float | str, ...]:
    return tuple(
        each if math.isfinite(each) else "" for each in (estimate.value, estimate.low, estimate.high)
    )


def _gflops(entry: Entry, *, with_interval: bool = False) -> str:
    if entry.gflops == NO_SPEED:
        return ""
    estimate = entry.gflops
    return f"{estimate.value:.4g}" + (f" ({estimate.low:.4g}-{estimate.high:.4g})" if with_interval else "")


def _speedup(entry: Entry) -> str:
    return speedup_text(Ratio(entry.speedup.value, entry.speedup.low, entry.speedup.high))


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.library.cli"))
