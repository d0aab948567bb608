"""`dispatch-profiler library prove`: a library of another compiler -> one of the installed compiler, and what was lost."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    positive,
    positive_number,
    run,
    say,
    show,
    user_cache,
)
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import locked
from dispatch_profiler.library import Library, find_library, library_file
from dispatch_profiler.library.entry import Hardware, best_for, for_one_size
from dispatch_profiler.library.library import is_shipped, old_spec_hint
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.statistics.comparison import SequentialTestOptions
from dispatch_profiler.tuner.commands.arguments import named_devices, parse_architecture
from dispatch_profiler.tuner.evaluation.building import BuildOptions
from dispatch_profiler.tuner.results.finalists import Benchmark
from dispatch_profiler.tuner.results.prove import (
    DROPPED_FILE,
    Proof,
    ProofOutcome,
    ProvenLibrary,
    prove,
    target_of,
)
from dispatch_profiler.tuner.results.uplift import line_of

PROG = "dispatch-profiler library prove"
#: Time limit in seconds to compare an entry with the untuned configuration, and the difference that does not matter.
_SECONDS, _MARGIN = 10.0, 0.02


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Prove the entries of a library again with the installed compiler: compile, verify and measure each, and write "
        "the proven entries as a library for this compiler. Prints the lost entries.",
        HelpPage(examples=(f"{prog} tuned/final", f"{prog} xeon-avx512 -o proven --jobs=4")),
    )
    parser.add_argument("library", metavar="LIBRARY", help="folder with a library.json, or a shipped library")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="folder of the new library (default: LIBRARY, which is replaced)",
    )
    parser.add_argument(
        "-a", "--target", "--architecture", metavar="NAME",
        help="a target such as llvm-cpu:znver4 (default: the library's)",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--device", metavar="URI", help="device that verifies and measures (default: the target's)"
    )
    parser.add_argument(
        "-j", "--jobs", "--num-cpu", type=positive, metavar="N", help="concurrent builds (default: all CPUs)"
    )
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help="time limit for a step of one entry (default: %(default)g)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    given = folder(options.library)
    if is_shipped(given) and not options.output:
        raise UsageError(
            f"{given} is a shipped library, which is not replaced", hint=f"{options.prog} {given} -o FOLDER"
        )
    source, output = find_library(given), folder(options.output or options.library)
    if output.exists() and not output.is_dir():
        if options.output:
            raise UsageError(f"--output: {output} is a file", hint="name a folder")
        raise UsageError(f"{output} is a file, which is not replaced", hint="name the folder of the library")
    library = Library.load(source)
    benchmark = _benchmark(options, library)
    file = library_file(output)
    with locked(file.with_name(f".{file.name}.lock")):
        hardware = Hardware.here(benchmark.target)
        of_one = for_one_size(library.sound)
        if several := len(library.sound) - len(of_one):
            say(f"{counted(several, 'entry')} for several sizes: tune them again with `tune --range`")
        others = len(of_one) - len(best_for(of_one, hardware))
        if others:
            say(f"{counted(others, 'entry')} for other CPUs or numbers of threads: prove on such a machine")
        proven = ProvenLibrary.open(source, output, benchmark.compiler.revision, hardware)
        return _prove(options, benchmark, proven)


def _benchmark(options: argparse.Namespace, library: Library) -> Benchmark:
    wanted = parse_architecture(options.target) if options.target else None
    target = target_of(library, wanted, option=options.library)
    device = (*named_devices(options.device, target.device_uri, "--device"), target.device_uri)[0]
    return Benchmark(
        target,
        compiler_for(target),
        EvaluatorOptions(device, seconds=options.timeout, peaks=user_cache() / "machines"),
        BuildOptions(workers=options.jobs, seconds=options.timeout),
        test=SequentialTestOptions(threshold=_MARGIN),
        pair_seconds=_SECONDS,
        say=lambda line: say(f"[Prove]: {line}"),
    )


def _prove(options: argparse.Namespace, benchmark: Benchmark, library: ProvenLibrary) -> int:
    entries, output, damaged = library.left, library.output, library.damaged
    for each in damaged:
        show(f"{ProofOutcome.DROPPED.value}: {each.reason}")
    if not entries and not damaged:
        library.save()
        kept = (
            f"wrote {counted(len(library), 'entry')} to {library_file(output)}"
            if options.output
            else "unchanged"
        )
        say(f"{options.library}: no entry is left to prove for compiler {library.revision}; {kept}")
        return SUCCESS
    say(f"Proving {counted(len(entries), 'entry')} of {options.library} with compiler {library.revision}")
    counts, done = Counter({ProofOutcome.DROPPED: len(damaged)}), 0
    try:
        for proof in prove(entries, benchmark):
            library.take(proof)
            counts[proof.outcome] += 1
            done += 1
            _show(proof, f"{done} of {len(entries)}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"proved {done} of {counted(len(entries), 'entry')}: decided entries are kept in {output}, and the same "
            "command continues from there"
        ) from None
    finally:
        if counts.total():
            library.save()
    return _finish(counts, len(library), output)


def _show(proof: Proof, place: str) -> None:
    """Print the outcome of an entry: as data if it is lost, else as progress."""
    line = line_of(proof.judged)
    if proof.proven is None:
        show(f"{proof.outcome.value}: {line}")
        return
    now, before = proof.proven.gflops.value, proof.entry.gflops.value
    recorded = f", recorded {before:.4g}" if before else ""
    say(f"[Proven]: {line}; {now:.4g} GFLOP/s{recorded}  [{place}]")


def _finish(counts: Counter[ProofOutcome], kept: int, output: Path) -> int:
    counted_outcomes = ", ".join(f"{counts[each]} {each.value}" for each in ProofOutcome)
    say(f"Wrote {counted(kept, 'entry')} to {library_file(output)}: {counted_outcomes}")
    if counts[ProofOutcome.DROPPED]:
        say(
            f"{output / DROPPED_FILE} has the dropped entries with their reasons: tune their operations again"
        )
    if counts[ProofOutcome.UNDECIDED]:
        say("hint: the same command tries undecided entries again")
    if hint := old_spec_hint(output):
        say(hint)
    return SUCCESS if counts.total() == counts[ProofOutcome.PROVEN] else FAILED


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.prove_cli"))
