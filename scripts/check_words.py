"""Search the project for wording that `words.txt` replaces: `check_words.py [--strict] [FILE ...]`.

Without files, searches all text files that git tracks. Prints the number of occurrences of each phrase.
With --strict, prints their locations and exits with status 1 if there are any. Skips `code` in
CHANGELOG.md, which names what was renamed.
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
#: Files that quote the phrases, contain field names of version 1 of the records, or are third-party.
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
#: Inline code in Markdown.
_CODE = re.compile(r"`[^`\n]*`")
#: Separator of words in a phrase: spaces, or the end of a line of text, of a comment or of a string.
_GAP = r"""(?:[ \t]|["']?\n[ \t]*(?:#:?|//|[*>]|[frb]{0,2}["'])?)+"""


@dataclass(frozen=True)
class Rule:
    """A phrase to avoid, and its replacement."""

    phrase: str
    replacement: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the phrase in any case, as whole words, even across lines."""
        text = _GAP.join(map(re.escape, self.phrase.split()))
        start = r"\b" if self.phrase[0].isalnum() else ""
        end = r"\b" if self.phrase[-1].isalnum() else ""
        return re.compile(start + text + end, re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """An occurrence of a phrase in a file."""

    path: str
    line: int
    rule: Rule

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.rule.phrase}": write "{self.rule.replacement}"'


def read_rules(text: str) -> list[Rule]:
    """Parse a word list with one `phrase => replacement` per line. Raises ValueError for malformed lines."""
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
    """All occurrences of phrases in `text`, in the order of lines."""
    found = [
        Finding(path, text.count("\n", 0, match.start()) + 1, rule)
        for rule in rules
        for match in rule.pattern.finditer(text)
    ]
    return sorted(found, key=lambda finding: finding.line)


def is_exempt(path: str) -> bool:
    """True if `path`, relative to the project's root, is not searched."""
    return path.startswith(EXEMPT)


def tracked_files() -> list[Path]:
    """The files of this checkout that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def search(files: Iterable[Path], rules: Sequence[Rule]) -> Iterator[Finding]:
    """Findings in those of `files` that are text and not exempt."""
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
    """Returns the exit status: 1 with --strict if a phrase was found, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="fail if a phrase occurs, and print locations")
    options = parser.parse_args(arguments)
    rules = read_rules(WORDS.read_text(encoding="utf-8"))
    findings = list(search(options.files or tracked_files(), rules))
    if options.strict:
        print(*findings, sep="\n", end="\n" if findings else "")
    elif findings:
        print(f"{len(findings)} uses of phrases in scripts/words.txt (a warning; --strict prints locations):")
        counts = Counter(finding.rule for finding in findings)
        for rule, count in counts.most_common():
            print(f'{count:5} x "{rule.phrase}": write "{rule.replacement}"')
    return 1 if options.strict and findings else 0


if __name__ == "__main__":
    sys.exit(main())
