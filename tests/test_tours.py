"""benchmarks/tours.py runs the lines of a page in a shell, and says which of them would stop a reader."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from script_helpers import ROOT, load_script

pages = load_script("benchmarks/_pages.py")
tours = load_script("benchmarks/tours.py")
Line, Page, Saved = tours.Line, tours.Page, tours.Saved

PAGE = Page("""# I have a page

You need the package with the extras `torch` and `tune`.

```console
$ mkdir here && cd here
```

`greeting.txt`:

```text
it's $HOME
```

```console
$ cat greeting.txt
$ export STEP=3
$ sh -c 'echo problem; exit 4'
$ sh -c 'exit 5'  # exit status 5
$ test "$STEP" = 3 && echo proof: 1.5x
```

```text
$ not a line
```
""")
INDEX = Page("""## Install

```console
$ python3 -m venv .venv
$ python -m pip install -e '.[tune]'
$ python -m pip install -e '.[torch,tune]'
```

## Later

```console
$ python -m pip install -e '.[report]'
```
""")


def taken(page, folder: Path, proof: str = "^proof:"):
    log = io.StringIO()
    found = tours.take(
        tours.Tour("page", proof), page.steps(), folder, tours.environment(folder / "home", os.environ), log
    )
    return found, log.getvalue()


def test_steps_are_in_the_order_of_the_page():
    assert PAGE.steps()[:3] == [
        Line("mkdir here && cd here"),
        Saved("greeting.txt", "it's $HOME\n"),
        Line("cat greeting.txt"),
    ]
    assert [(line.command, line.status) for line in PAGE.lines()][3:5] == [
        ("sh -c 'echo problem; exit 4'", 0),
        ("sh -c 'exit 5'", 5),
    ]


def test_a_tour_goes_on_after_a_stop(tmp_path: Path, capsys):
    found, log = taken(PAGE, tmp_path)

    assert [(each.line.text, each.status) for each in found.ran if each.is_stop] == [
        ("sh -c 'echo problem; exit 4'", 4)
    ]
    assert [each.line for each in found.ran] == PAGE.lines()
    assert found.proven is not None
    assert "it's $HOME\n" in log  # as the page shows it
    printed = capsys.readouterr().out
    assert "STOP: ended with status 4 instead of 0\n          | problem\n" in printed
    assert [row.holds for row in found.rows()] == [True, True, False]


def test_lines_after_the_end_of_the_shell_are_stops(tmp_path: Path, monkeypatch, capsys):
    found, _ = taken(Page("```console\n$ exit 1  # exit status 1\n$ true\n```\n"), tmp_path)

    assert [each.status for each in found.ran] == [None, None]
    assert "did not end instead of" in capsys.readouterr().out


def test_a_tour_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tours, "LIMIT", 0.5)

    found, _ = taken(Page("```console\n$ echo proof: yes; sleep 1000 & sleep 1000; true\n```\n"), tmp_path)

    assert [each.status for each in found.ran] == [None]
    assert found.proven is not None


def test_a_tour_without_a_proof_misses_the_goal(tmp_path: Path):
    found, _ = taken(Page("```console\n$ true\n```\n"), tmp_path)

    assert [(row.must, row.holds) for row in found.rows()] == [
        ("any", True),
        ("<= 600", False),
        ("<= 0", True),
    ]


def test_the_package_is_installed_with_the_extras_that_the_tutorial_names():
    both = tours.extras_of(PAGE)

    assert both == {"torch", "tune"}
    assert [line.text for line in tours.installation(INDEX, both, "torch==2.13.0")] == [
        "python3 -m venv .venv",
        "python -m pip install torch==2.13.0",
        "python -m pip install -e '.[torch,tune]'",
    ]
    assert [line.text for line in tours.installation(INDEX, {"tune"}, "torch==2.13.0")] == [
        "python3 -m venv .venv",
        "python -m pip install -e '.[tune]'",
    ]


def test_what_no_page_says_is_an_error():
    with pytest.raises(ValueError, match="does not say with which extras"):
        tours.extras_of(Page("You need the package."))
    with pytest.raises(ValueError, match="no line of the section 'Install' has the extras report"):
        tours.installation(INDEX, {"report"})
    with pytest.raises(ValueError, match="no section 'Use'"):
        INDEX.section("Use")


def test_a_tour_inherits_nothing_that_a_new_user_lacks(tmp_path: Path):
    given = {"PATH": "/bin", "PIP_INDEX_URL": "x", "BOO_PROGRESS": "0", "PYTHONPATH": "/x", "HOME": "/me"}

    found = tours.environment(tmp_path / "home", given)

    assert found == {
        "PATH": "/bin",
        "PIP_INDEX_URL": "x",
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "home/tmp"),
    }


@pytest.mark.parametrize("tour", tours.TOURS, ids=lambda tour: tour.name)
def test_a_tutorial_shows_the_proof_that_its_tour_waits_for(tour, tmp_path: Path):
    page = Page.read(ROOT / tour.path)
    shown = "".join(f"printf '%s' {tours.shlex.quote(text)}\n" for text in page.blocks("text"))
    (tmp_path / "shown.sh").write_text(shown)

    found, _ = taken(Page(f"```console\n$ sh {tmp_path}/shown.sh\n```\n"), tmp_path, tour.proof)

    assert found.proven is not None
    assert tours.steps_of(tour, ROOT, None)[0] == Line("python3 -m venv .venv")


def test_every_tutorial_has_a_tour():
    assert {tour.path for tour in tours.TOURS} == {
        path.relative_to(ROOT) for path in (ROOT / "docs/tutorials").glob("*.md")
    }
