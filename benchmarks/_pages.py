"""The lines and files that a page of the documents tells its reader to run and to save; shared with the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Ends a line whose exit status is not 0, for example because it reports dispatches that fail.
_STATED = re.compile(r"  # exit status (\d+)$")
#: A file that a page asks its reader to save.
_SAVED = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(r"^\$ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """A command line, as it is written."""

    text: str

    @property
    def command(self) -> str:
        """Without the statement of its exit status."""
        return _STATED.sub("", self.text)

    @property
    def status(self) -> int:
        """The exit status that it states; without a statement 0."""
        found = _STATED.search(self.text)
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class Saved:
    """A file that the reader saves in the folder of the lines around it."""

    name: str
    text: str


@dataclass(frozen=True)
class Page:
    """The text of a page, or of a part of it."""

    text: str

    @classmethod
    def read(cls, path: Path) -> Page:
        """The page at `path`."""
        return cls(path.read_text())

    def blocks(self, language: str) -> list[str]:
        """What the blocks of a language contain."""
        return [text for _, text in self._blocks(language)]

    def _blocks(self, language: str) -> Iterator[tuple[int, str]]:
        """Each with its place in the page."""
        for match in re.finditer(rf"```{re.escape(language)}\n(.*?)```", self.text, flags=re.DOTALL):
            yield match.start(1), match[1]

    def lines(self) -> list[Line]:
        """The lines after prompts in blocks of `console`."""
        return [step for step in self.steps() if isinstance(step, Line)]

    def saved(self) -> list[Saved]:
        """The files that the reader saves."""
        return [step for step in self.steps() if isinstance(step, Saved)]

    def steps(self) -> list[Line | Saved]:
        """Lines and files, in the order of the page."""
        found: list[tuple[int, Line | Saved]] = [
            (match.start(), Saved(match[1], match[2])) for match in _SAVED.finditer(self.text)
        ]
        for start, block in self._blocks("console"):
            found += [(start + match.start(), Line(match[1])) for match in _PROMPT.finditer(block)]
        return [step for _, step in sorted(found, key=lambda each: each[0])]

    def section(self, heading: str) -> Page:
        """What follows a heading of the second level, up to the next one. Raises ValueError if none is called so."""
        found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.text, re.DOTALL | re.MULTILINE)
        if found is None:
            raise ValueError(f"the page has no section '{heading}'")
        return Page(found[1])
