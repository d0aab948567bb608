"""The word list of `make lint`: it finds what it should, where it is, and nothing else."""

from __future__ import annotations

import re

import pytest
from script_helpers import ROOT, load_script

check_words = load_script("scripts/check_words.py")
RULES = [check_words.Rule("is not there", "is missing"), check_words.Rule("there is:", "available:")]


def lines_found(text: str) -> list[int]:
    return [finding.line for finding in check_words.find(RULES, "file", text)]


@pytest.mark.parametrize(
    "text",
    [
        "it is not there",
        "It Is Not There.",
        "it is not\nthere",
        "    # it is\n    # not there",
        "#: it is not\n#: there",
        "// it is not\n// there",
        "> it is not\n> there",
        '    f"it is not "\n    f"there"',
        "it  is not\tthere",
    ],
)
def test_a_phrase_is_found_in_any_case_and_across_lines(text: str):
    assert lines_found(text) == [
        next(n for n, line in enumerate(text.lower().split("\n"), 1) if "is" in line)
    ]


@pytest.mark.parametrize("text", ["this not there", "is not thereby", "is, not there"])
def test_what_only_resembles_a_phrase_is_not_found(text: str):
    assert lines_found(text) == []


def test_a_phrase_that_ends_in_a_colon_is_found():
    assert lines_found("hint: There is: a, b") == [1]


def test_findings_say_where_and_what_to_write():
    (finding,) = check_words.find(RULES, "docs/a.md", "one\ntwo there is: three\n")

    assert str(finding) == 'docs/a.md:2: "there is:": write "available:"'


@pytest.mark.parametrize("line", ["phrase", "=> replacement", "phrase =>", "phrase -> replacement"])
def test_a_line_that_is_no_rule_is_named(line: str):
    with pytest.raises(
        ValueError, match=re.escape(f"line 2: expected `phrase => replacement`, got {line!r}")
    ):
        check_words.read_rules(f"# a comment\n{line}\n")


def test_the_list_of_the_project_is_read():
    rules = check_words.read_rules(check_words.WORDS.read_text())

    assert "there is:" in {rule.phrase for rule in rules}
    assert len({rule.phrase.lower() for rule in rules}) == len(rules)


def test_no_replacement_uses_a_phrase_of_the_list():
    rules = check_words.read_rules(check_words.WORDS.read_text())

    assert check_words.find(rules, "words", "\n.\n".join(rule.replacement for rule in rules)) == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, whose words are checked."""
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    return tmp_path


def test_strict_fails_and_says_where(project, capsys):
    (project / "a.md").write_text("Options; there is: a, b\n")

    assert check_words.main([str(project / "a.md")]) == 0
    assert '1 x "there is:"' in capsys.readouterr().out
    assert check_words.main(["--strict", str(project / "a.md")]) == 1
    assert capsys.readouterr().out == 'a.md:1: "there is:": write "available:"\n'


def test_strict_passes_where_nothing_is_found(project, capsys):
    (project / "a.md").write_text("Available: a, b\n")
    (project / "a.png").write_bytes(b"\x89PNG there is: \xff")

    assert check_words.main(["--strict", str(project / "a.md"), str(project / "a.png")]) == 0
    assert capsys.readouterr().out == ""


def test_code_in_the_changelog_is_not_searched(project):
    """It names what was renamed; the sentence around it is searched."""
    (project / "CHANGELOG.md").write_text("- Renamed\n- `there is:` is\n- there is: a, b\n")

    (finding,) = check_words.search([project / "CHANGELOG.md"], RULES)
    assert finding.line == 3


COUNTED = check_words.Rule("those of", "the noun again", counted=True)
#: 11 words of comments and docstrings, 3 counted phrases; those in code do not count.
MODULE = '''"""Sizes and those of
another."""

def sizes():
    """Those of x."""
    text = "those of"
    return text  # those
    # of y
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules into an empty project; returns the rates of its packages by folder."""
    monkeypatch.setattr(check_words, "ROOT", tmp_path)

    def rates(modules: dict[str, str]) -> dict[str, tuple[int, int]]:
        for name, text in modules.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        files = [tmp_path / name for name in modules]
        return {rate.package: (rate.phrases, rate.words) for rate in check_words.rates(files, [COUNTED])}

    return rates


def prose_of(words: int) -> str:
    return "# a thing\n" * (words // 2)


def test_the_list_tells_counted_phrases_from_forbidden_phrases():
    rules = check_words.read_rules("forbidden => x\n[counted]\nthose of => y\n")

    assert [(rule.phrase, rule.counted) for rule in rules] == [("forbidden", False), ("those of", True)]


@pytest.mark.parametrize(
    ("text", "number"), [("there is none", 1), ("Is none\nis\n# none", 2), ("is None", 0), ("this none", 0)]
)
def test_a_counted_phrase_varies_only_in_its_first_letter(text: str, number: int):
    rule = check_words.Rule("is none", "the noun again", counted=True)

    assert len(check_words.find([rule], "file", text)) == number


def test_comments_and_docstrings_keep_their_lines():
    findings = check_words.find([COUNTED], "a.py", check_words.prose(MODULE))

    assert [finding.line for finding in findings] == [1, 5, 7]


def test_phrases_and_words_of_comments_and_docstrings_are_counted(package):
    assert package({"dispatch_profiler/a.py": MODULE, "tests/b.py": MODULE}) == {"dispatch_profiler": (3, 11)}


def test_a_small_folder_counts_with_its_parent(package):
    large = prose_of(check_words.SMALL)

    assert package(
        {
            "dispatch_profiler/large/a.py": large,
            "dispatch_profiler/large/small/inner/b.py": MODULE,
            "dispatch_profiler/small/c.py": MODULE,
        }
    ) == {"dispatch_profiler/large": (3, check_words.SMALL + 11), "dispatch_profiler": (3, 11)}


def test_strict_fails_for_a_package_above_the_limit(package, monkeypatch, capsys):
    package({"dispatch_profiler/a.py": MODULE + prose_of(989)})  # 3 per 1,000 words
    monkeypatch.setattr(check_words, "tracked_files", lambda: [check_words.ROOT / "dispatch_profiler/a.py"])

    monkeypatch.setattr(check_words, "LIMIT", 3.1)
    assert check_words.main(["--strict"]) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(check_words, "LIMIT", 2.9)
    assert check_words.main(["--strict"]) == 1
    assert "dispatch_profiler: 3.0 pronouns per 1,000 words" in capsys.readouterr().out
    assert check_words.main(["--rates"]) == 0
    assert capsys.readouterr().out.split("\n")[1].split() == ["3.0", "3", "999", "dispatch_profiler"]


def test_rates_of_files_are_locations(package, capsys):
    package({"dispatch_profiler/a.py": MODULE})

    assert check_words.main(["--rates", str(check_words.ROOT / "dispatch_profiler/a.py")]) == 0
    assert 'dispatch_profiler/a.py:5: "those of": write "the noun again"' in capsys.readouterr().out


def test_the_list_and_the_guide_are_not_searched():
    files = [ROOT / path for path in ("CONTRIBUTING.md", "scripts/words.txt", "tests/test_words.py")]
    rules = check_words.read_rules(check_words.WORDS.read_text())

    assert list(check_words.search(files, rules)) == []
    assert all(check_words.is_exempt(path.relative_to(ROOT).as_posix()) for path in files)
    assert not check_words.is_exempt("README.md")
