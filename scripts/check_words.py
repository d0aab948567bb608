"""Search the project for wording that `words.txt` replaces: `check_words.py [--strict] [FILE ...]`.

Without files, searches all text files that git tracks. Prints the number of occurrences of each phrase.
With --strict, prints their locations and exits with status 1 if there are any. Skips `code` in
CHANGELOG.md, which names what was renamed.

Phrases below `[counted]` in `words.txt`, pronouns that replace a noun, are allowed but rationed: --strict
also fails if a package contains more than LIMIT of these phrases per 1,000 words of its comments and
docstrings. --rates prints the rate of each package; `--rates FILE ...` prints the locations in files.
A package is a folder below `dispatch_profiler/`. A folder with fewer than SMALL words counts as a part of
its parent folder.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
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
    "dispatch_profiler/profiler/records/record_file.py",
    "tests/profiler/records/test_record_file.py",
    "dispatch_profiler/templates/plotly/",
)
#: Folder of the packages whose comments and docstrings are counted.
PACKAGE = "dispatch_profiler"
#: Highest number of counted phrases per 1,000 words of the comments and docstrings of a package.
LIMIT = 2.0
#: A folder with fewer words of comments and docstrings counts as a part of its parent folder.
SMALL = 1500
#: Line of the word list below which phrases are counted rather than forbidden.
_COUNTED = "[counted]"
_WORD = re.compile(r"[^\W_][\w'-]*")
#: Inline code in Markdown.
_CODE = re.compile(r"`[^`\n]*`")
#: Separator of words in a phrase: spaces, or the end of a line of text, of a comment or of a string.
_GAP = r"""(?:[ \t]|["']?\n[ \t]*(?:#:?|//|[*>]|[frb]{0,2}["'])?)+"""


@dataclass(frozen=True)
class Rule:
    """A phrase to avoid, and its replacement."""

    phrase: str
    replacement: str
    #: True if the phrase is allowed up to LIMIT per 1,000 words of a package.
    counted: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the phrase as whole words, even across lines.

        In any case; of a counted phrase, only the first letter varies: `is None` is not "is none".
        """
        if self.counted:
            first, rest = self.phrase[0], self.phrase[1:]
            words = f"[{first.lower()}{first.upper()}]" + _GAP.join(map(re.escape, rest.split()))
            return re.compile(rf"\b{words}\b")
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


@dataclass(frozen=True)
class Rate:
    """Number of words in the comments and docstrings of a package, and of counted phrases among them."""

    package: str
    words: int
    phrases: int

    @property
    def per_thousand(self) -> float:
        """Phrases per 1,000 words; 0 without words."""
        return 1000 * self.phrases / self.words if self.words else 0.0


def read_rules(text: str) -> list[Rule]:
    """Parse a word list with one `phrase => replacement` per line. Raises ValueError for malformed lines.

    Rules below a line `[counted]` are counted rather than forbidden.
    """
    rules = []
    counted = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.strip() == _COUNTED:
            counted = True
            continue
        phrase, arrow, replacement = (part.strip() for part in line.partition("=>"))
        if not (phrase and arrow and replacement):
            raise ValueError(f"line {number}: expected `phrase => replacement`, got {line!r}")
        rules.append(Rule(phrase, replacement, counted))
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


def prose(source: str) -> str:
    """The comments and docstrings of Python code, each on the lines on which the code has them."""
    code = ["", *source.split("\n")]
    lines = [""] * len(code)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = token.string
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            # The lines of the literal rather than its value: escaped line breaks keep their lines.
            literal = slice(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
            lines[literal] = code[literal]
    return "\n".join(lines[1:])


def rates(files: Iterable[Path], rules: Sequence[Rule]) -> list[Rate]:
    """The rate of each package in the folder PACKAGE, the highest first."""
    words: Counter[Path] = Counter()
    phrases: Counter[Path] = Counter()
    top = ROOT / PACKAGE
    for file in files:
        if file.suffix == ".py" and top in file.parents and file.is_file():
            text = prose(file.read_text(encoding="utf-8"))
            words[file.parent] += len(_WORD.findall(text))
            phrases[file.parent] += len(find(rules, file.name, text))
    # Parents of folders that contain no modules take part too: deepest first, each adds to the next.
    folders = {folder for leaf in words for folder in (leaf, *leaf.parents) if top in folder.parents}
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if words[folder] < SMALL:
            words[folder.parent] += words.pop(folder)
            phrases[folder.parent] += phrases.pop(folder, 0)
    packages = [Rate(folder.relative_to(ROOT).as_posix(), words[folder], phrases[folder]) for folder in words]
    return sorted(packages, key=lambda rate: (-rate.per_thousand, rate.package))


def _print_rates(packages: Sequence[Rate]) -> None:
    print("per 1,000  phrases    words  package")
    for rate in packages:
        print(f"{rate.per_thousand:9.1f}  {rate.phrases:7}  {rate.words:7}  {rate.package}")


def _print_counted(files: Iterable[Path], counted: Sequence[Rule]) -> None:
    for file in files:
        if file.suffix == ".py":
            path = file.resolve().relative_to(ROOT).as_posix()
            print(*find(counted, path, prose(file.read_text(encoding="utf-8"))), sep="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 with --strict if a phrase or a high rate was found, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="fail if a phrase occurs, and print locations")
    parser.add_argument("--rates", action="store_true", help="print counted phrases per 1,000 words")
    options = parser.parse_args(arguments)
    rules = read_rules(WORDS.read_text(encoding="utf-8"))
    counted = [rule for rule in rules if rule.counted]
    if options.rates and options.files:
        _print_counted(options.files, counted)
        return 0
    packages = [] if options.files else rates(tracked_files(), counted)
    if options.rates:
        _print_rates(packages)
        return 0
    findings = list(search(options.files or tracked_files(), [rule for rule in rules if not rule.counted]))
    excessive = [rate for rate in packages if rate.per_thousand > LIMIT]
    if options.strict:
        print(*findings, sep="\n", end="\n" if findings else "")
        for rate in excessive:
            print(
                f"{rate.package}: {rate.per_thousand:.1f} pronouns per 1,000 words of comments and docstrings, "
                f"limit {LIMIT}; see check_words.py --rates {rate.package}/*.py"
            )
    elif findings:
        print(f"{len(findings)} uses of phrases in scripts/words.txt (a warning; --strict prints locations):")
        counts = Counter(finding.rule for finding in findings)
        for rule, count in counts.most_common():
            print(f'{count:5} x "{rule.phrase}": write "{rule.replacement}"')
    return 1 if options.strict and (findings or excessive) else 0


if __name__ == "__main__":
    sys.exit(main())
