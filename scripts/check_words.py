"""Search the project's text for wording that `words.txt` replaces: `check_words.py [--strict] [FILE ...]`.

Without files, every text file that git tracks is searched. Prints how often each phrase occurs; with
--strict also where, and the exit status is 1 if any does. In CHANGELOG.md, `code` is not searched: it
names what was renamed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = Path(__file__).with_name("words.txt")
#: They quote the phrases, name the fields of version 1 of the records, or are the work of others.
EXEMPT = (
    "CONTRIBUTING.md",
    "LICENSE",
    "scripts/words.txt",
    "scripts/check_words.py",
    "tests/test_words.py",
    "dispatch_profiler/profiler/records/versions.py",
    "tests/profiler/records/test_record_file.py",
    "dispatch_profiler/templates/plotly/",
)
#: Code in Markdown, within a line.
_CODE = re.compile(r"`[^`\n]*`")
#: Between two words of a phrase: spaces, or the end of a line of text, of a comment or of a string.
_GAP = r"""(?:[ \t]|["']?\n[ \t]*(?:#:?|//|[*>]|[frb]{0,2}["'])?)+"""


@dataclass(frozen=True)
class Rule:
    """A phrase that is not used, and what to write instead."""

    phrase: str
    replacement: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the phrase in any case, as whole words, across the end of a line."""
        text = _GAP.join(map(re.escape, self.phrase.split()))
        start = r"\b" if self.phrase[0].isalnum() else ""
        end = r"\b" if self.phrase[-1].isalnum() else ""
        return re.compile(start + text + end, re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """A phrase found in a file."""

    path: str
    line: int
    rule: Rule

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.rule.phrase}": write "{self.rule.replacement}"'


def read_rules(text: str) -> list[Rule]:
    """Rules of a word list, one `phrase => replacement` a line. Raises ValueError for any other line."""
    rules = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        phrase, arrow, replacement = (part.strip() for part in line.partition("=>"))
        if not (phrase and arrow and replacement):
            raise ValueError(f"line {number}: expected `phrase => replacement`, got {line!r}")
        rules.append(Rule(phrase, replacement))
    return rules


def find(rules: Iterable[Rule], path: str, text: str) -> list[Finding]:
    """Every occurrence of a phrase in `text`, in the order of its lines."""
    found = [
        Finding(path, text.count("\n", 0, match.start()) + 1, rule)
        for rule in rules
        for match in rule.pattern.finditer(text)
    ]
    return sorted(found, key=lambda finding: finding.line)


def is_exempt(path: str) -> bool:
    """Is the file (a path below the project's root) left out of the search?"""
    return path.startswith(EXEMPT)


def tracked_files() -> list[Path]:
    """Files of this checkout that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def search(files: Iterable[Path], rules: Sequence[Rule]) -> Iterator[Finding]:
    """Findings in those of `files` that are text of the project and not exempt."""
    for file in files:
        path = file.resolve().relative_to(ROOT).as_posix()
        if is_exempt(path) or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield from find(rules, path, _CODE.sub("``", text) if path == "CHANGELOG.md" else text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with --strict if a phrase was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="fail if a phrase occurs, and say where")
    options = parser.parse_args(arguments)
    rules = read_rules(WORDS.read_text(encoding="utf-8"))
    findings = list(search(options.files or tracked_files(), rules))
    if options.strict:
        print(*findings, sep="\n", end="\n" if findings else "")
    elif findings:
        print(f"{len(findings)} uses of phrases in scripts/words.txt (a warning; --strict says where):")
        counts = Counter(finding.rule for finding in findings)
        for rule, count in counts.most_common():
            print(f'{count:5} x "{rule.phrase}": write "{rule.replacement}"')
    return 1 if options.strict and findings else 0


if __name__ == "__main__":
    sys.exit(main())
