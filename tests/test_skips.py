"""What the tests rely on: skips, a process for the compiler's IR, turns, and pairs of parameters."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairwise import covering, groups_of, pairwise, parametrize_pairwise
from skips import PROPERTIES, is_property
from turnstile import turn

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("reason", "is_one"),
    [
        ("torch has no CUDA device here", True),
        ("Skipped: could not import 'triton': No module named 'triton'", True),
        ("Skipped: could not import 'torch.testing._internal.common_methods_invocations': x\ny", True),
        ("bash is not installed", True),
        ("could not import 'dispatch_profiler': no", False),
        ("this does not work yet", False),
        ("one GPU, and it is slow", False),
        ("", False),
    ],
)
def test_reasons(reason: str, is_one: bool):
    assert is_property(reason) is is_one


def test_any_other_reason_fails_the_test_or_the_file(tmp_path: Path):
    """An expected failure is no skip."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='one GPU')\ndef test_a(): pass\n"
        "@pytest.mark.skip(reason='too slow')\ndef test_b(): pass\n"
        "def test_c(): pytest.skip('not yet')\n"
        "@pytest.mark.xfail\ndef test_d(): assert False\n"
    )
    (tmp_path / "test_others.py").write_text(
        "import pytest\npytest.importorskip('there_is_none')\ndef test_e(): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "skips", "-p", "no:cacheprovider", "--rootdir=.",
         "--continue-on-collection-errors", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert done.returncode != 0
    for words in ("too slow: no property", "not yet: no property", "'there_is_none'"):
        assert words in done.stdout
    assert "one GPU: no property" not in done.stdout


def test_contributing_lists_them():
    text = (HERE.parent / "CONTRIBUTING.md").read_text()
    assert [each for each in PROPERTIES if f"| {each} |" not in text] == []


CONFTEST = """
from hypothesis import settings

settings.register_profile("few", max_examples=7)
pytest_plugins = ("expendable",)

def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "works_on_ir")
"""
TEST = """
import os

import pytest
from hypothesis import settings

@pytest.fixture(scope="module")
def one():
    yield
    print("teardown", __name__, file=open("said.txt", "a"))

@pytest.mark.works_on_ir
@pytest.mark.parametrize("number", [0, 1])
def test_it(one, number):
    print(os.getpid(), __name__, file=open("said.txt", "a"))
    assert os.getpid() != int(os.environ["ASKING"]) and settings.default.max_examples == 7
"""
RUN = "import os, pytest, sys; os.environ['ASKING'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"


def test_tests_that_work_on_ir_share_a_process_with_the_profile_of_hypothesis(tmp_path: Path):
    """A fixture of a module stays until a test of another module runs."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    files = ["test_ir.py", "test_more.py"]
    for name in files:
        (tmp_path / name).write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""}

    ran = subprocess.run(
        [sys.executable, "-c", RUN, f"--rootdir={tmp_path}", "--hypothesis-profile=few", *files],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout
    said = (tmp_path / "said.txt").read_text().split()
    process = said[0]
    assert said == [
        word for name in ("test_ir", "test_more") for word in (process, name, process, name, "teardown", name)
    ]


def is_free(path: Path, kind: int) -> bool:
    """Could another process take this lock now?"""
    with path.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_test_that_is_alone_keeps_every_other_out(tmp_path: Path):
    with turn(tmp_path, alone=True):
        assert not is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "running.lock", fcntl.LOCK_SH)


def test_other_tests_run_side_by_side_and_keep_one_that_is_alone_out(tmp_path: Path):
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        assert is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "running.lock", fcntl.LOCK_EX)


@pytest.mark.parametrize("alone", [True, False])
def test_a_test_that_fails_gives_its_turn_back(tmp_path: Path, alone: bool):
    with pytest.raises(RuntimeError), turn(tmp_path, alone=alone):
        raise RuntimeError

    assert is_free(tmp_path / "turnstile.lock", fcntl.LOCK_EX)
    assert is_free(tmp_path / "running.lock", fcntl.LOCK_EX)


def test_no_test_starts_before_one_that_waits_to_be_alone(tmp_path: Path):
    ran = threading.Event()

    def be_alone() -> None:
        with turn(tmp_path, alone=True):
            ran.set()

    with turn(tmp_path, alone=False):
        waits = threading.Thread(target=be_alone)
        waits.start()
        while is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH):
            assert not ran.is_set()
        assert not ran.is_set()
    waits.join()

    assert ran.is_set()


def test_many_turns_of_both_kinds(tmp_path: Path):
    """Locks of two open files exclude each other in one process as in two."""
    inside: set[int] = set()
    wrong: list[str] = []
    together = threading.Barrier(2, timeout=60)

    def take_turns(number: int) -> None:
        for alone in random.Random(number).choices([True, False], k=50):
            with turn(tmp_path, alone=alone):
                inside.add(number)
                if alone and inside != {number}:
                    wrong.append(f"{number} is not alone: {inside}")
                inside.discard(number)
        together.wait()  # none wants to be alone any more
        with turn(tmp_path, alone=False):
            together.wait()  # neither leaves before the other is in

    threads = [threading.Thread(target=take_turns, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert not together.broken


def test_tests_that_run_alone_are_the_first(request: pytest.FixtureRequest):
    """Otherwise they would wait for long ones."""
    alone = [item.get_closest_marker("alone") is not None for item in request.session.items]
    assert alone == sorted(alone, reverse=True)


ROWS = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 3)] * width), min_size=1, max_size=60)
)


@given(ROWS, st.integers(1, 2))
def test_every_group_that_occurs_is_chosen_in_the_order_of_the_rows(rows: list[tuple[int, ...]], size: int):
    chosen = covering(rows, size)

    every, held = (set().union(*(groups_of(row, size) for row in each)) for each in (rows, chosen))
    assert held == every
    assert sorted(chosen, key=rows.index) == chosen
    assert len(set(chosen)) == len(chosen)


def test_pairs_are_groups_of_two():
    assert groups_of(("a", 1, "a"), 2) == {((0, "a"), (1, 1)), ((0, "a"), (2, "a")), ((1, 1), (2, "a"))}
    assert pairwise([(1, 1), (1, 2), (2, 1), (2, 2)]) == covering([(1, 1), (1, 2), (2, 1), (2, 2)], 2)
    assert covering([(1, 1), (1, 2), (2, 1), (2, 2)], 1) == [(1, 1), (2, 2)]


def test_two_parameters_have_only_pairs():
    rows = list(itertools.product(range(3), "ab"))

    assert pairwise(rows) == rows


def test_many_parameters_need_few_rows():
    """Ten of two values: 1,024 combinations. 6 rows are the fewest possible; greedy needs a few more."""
    assert 6 <= len(pairwise(list(itertools.product([0, 1], repeat=10)))) <= 12


def test_the_same_rows_give_the_same_choice():
    rows = [row for row in itertools.product("abcde", range(4), [True, False]) if row[1] or row[2]]

    assert pairwise(rows) == pairwise(list(rows))


def test_a_value_means_another_thing_in_another_place():
    assert pairwise([(1, 2, 3), (3, 2, 1)]) == [(1, 2, 3), (3, 2, 1)]


def test_what_is_left_out_is_slow():
    rows = list(itertools.product([0, 1], repeat=4))

    mark = parametrize_pairwise(("a", "b", "c", "d"), rows).mark

    by_default = [p.values for p in mark.args[1] if not p.marks]
    assert by_default == pairwise(rows)
    assert sorted(p.values for p in mark.args[1]) == rows
    assert {m.name for p in mark.args[1] for m in p.marks} == {pytest.mark.slow.name}


SOME = """
import pytest

@pytest.mark.some(3)
@pytest.mark.parametrize("case", range(10))
def test_of_ten(case): pass

@pytest.mark.some(3)
@pytest.mark.parametrize("case", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_of_two(case): pass
"""


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (["-m", "not slow"], ["test_of_ten[0]", "test_of_ten[4]", "test_of_ten[9]", "test_of_two[0]"]),
        ([], [*(f"test_of_ten[{case}]" for case in range(10)), "test_of_two[0]", "test_of_two[1]"]),
    ],
)
def test_some_cases_run_by_default_and_all_in_slow_runs(tmp_path: Path, options: list[str], cases: list[str]):
    (tmp_path / "test_cases.py").write_text(SOME)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "some_cases",
        f"--rootdir={tmp_path}",
        "--collect-only",
        "-q",
    ]
    lines = subprocess.run(
        [*command, *options, "test_cases.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert [line.partition("::")[2] for line in lines if "::" in line] == cases
