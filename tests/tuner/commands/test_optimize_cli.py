"""`optimize --only=search` as its users meet it: tuning files become stored evaluations and a table of winners."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import FAILED, SUCCESS, USAGE
from dispatch_profiler.compiler import Cluster
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.commands import gen_configs_cli, optimize_cli
from dispatch_profiler.tuner.commands import optimize as steps
from dispatch_profiler.tuner.evaluation.devices import SharedDevices
from dispatch_profiler.tuner.search.search import OperationResult, SearchResult
from dispatch_profiler.tuner.tunings import tuning_file
from dispatch_profiler.tuner.tunings.tuning_file import Tuning, tuning_text

pytestmark = pytest.mark.usefixtures("in_process")

SMALL, LARGE = Matmul(16, 32, 8), Matmul(64, 32, 8)
#: Of the shipped list, hence among the seeds.
WINNER = CpuTiles((16, 64), (4, 16, 1))
STORAGE = Path("tunings/search.log")
NOTHING = SearchResult((OperationResult(SMALL, (), None, ""),))


class Ran:
    def __init__(self, status: int, err: str) -> None:
        self.status, self.err = status, err


@pytest.fixture
def optimize(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`optimize("--seed=1")`: the command on the tuning files of two problems.

    A journal and the strategy `random` take less time than the defaults.
    """
    faults = {
        Dispatch(SMALL, WINNER).name: {"time_ms": 0.25},
        Dispatch(LARGE, Default()).name: {"time_ms": 0.125},
        "*_default": {"time_ms": 0.5},
        "*": {"time_ms": 1.0},
    }
    Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))
    Path("tunings").mkdir()
    target = parse_target("null:faults.yaml")
    for number, operation in enumerate((SMALL, LARGE)):
        tuning = Tuning(
            f"SSS_NN_{number}", operation, target, "null", kinds=("default", "cpu_tiles"), evaluations=20
        )
        Path(f"tunings/SSS_NN_{number}.yaml").write_text(tuning_text(tuning))

    def call(*arguments: str, files: str = "tunings") -> Ran:
        capsys.readouterr()
        quick = ("--strategy=random", f"--storage={STORAGE}", "-j1")
        status = main(["optimize", files, "--only=search", *quick, *arguments])
        return Ran(status, capsys.readouterr().err)

    return call


@pytest.mark.slow
def test_each_problem_has_its_winner_and_the_records_of_all_candidates(optimize):
    ran = optimize()

    assert ran.status == SUCCESS
    assert re.search(rf"SSS_NN_0 +matmul \S+ +0.25 ms +2.00x the default +{WINNER.name}\n", ran.err)
    assert re.search(r"SSS_NN_1 +matmul \S+ +0.125 ms +1.00x the default +tile_config_default\n", ran.err)
    assert re.search(r"compiling \d+\.\d s, measuring \d+\.\d s, neither \d+\.\d s \(\d+\.\d %\)", ran.err)
    records = read_records(Path("tunings/search.jsonl"))
    assert [each.operation for each in records].count(SMALL.name) == 20
    assert {each.verdict.value for each in records} == {"SUCCESS"} and len(records) == 40
    assert "Writing the searches to tunings/search.html; nothing is benchmarked yet\n" in ran.err
    assert "Search for null:faults.yaml" in Path("tunings/search.html").read_text()


@pytest.mark.slow
def test_a_line_shows_what_happens(optimize):
    """In a log: when the search begins, then every ten seconds, which a search of the null target does not take."""
    lines = [line for line in optimize().err.splitlines() if line.startswith("[Searching]: ")]
    assert lines == [
        "[Searching]: round 1: compiling 14 candidates of 2 operations; 0 of at most 40 candidates"
    ]


@pytest.mark.slow
def test_a_second_run_has_nothing_to_do(optimize):
    optimize()
    err = optimize().err
    assert "[Searching]" not in err
    assert f"0.25 ms  2.00x the default  {WINNER.name}" in re.sub(r" {2,}", "  ", err)
    assert len(read_records(Path("tunings/search.jsonl"))) == 40


def test_a_missing_package_is_reported_before_anything_is_compiled(optimize, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    ran = optimize()
    assert ran.status == USAGE
    assert ran.err.count("a search requires Optuna") == 1 and "[Searching]" not in ran.err


def test_options_take_precedence_over_the_files(optimize):
    """A single file, with fewer evaluations, in another storage."""
    ran = optimize(
        "--evaluations=3",
        "--strategy=exhaustive",
        "--seed=4",
        "--storage=mine.log",
        files="tunings/SSS_NN_1.yaml",
    )
    assert ran.status == SUCCESS
    assert len(read_records(Path("tunings/search.jsonl"))) == 3
    assert Path("mine.log").exists() and not STORAGE.exists()


def test_a_time_budget_replaces_the_number_of_evaluations(optimize):
    """The space is searched until the time is over or nothing is left."""
    assert optimize("--time-budget=0.001", files="tunings/SSS_NN_0.yaml").status == SUCCESS
    assert len(read_records(Path("tunings/search.jsonl"))) == 1


def test_the_commands_in_the_docs_are_valid():
    document = Path(__file__).parents[3] / "docs" / "tuning.md"
    lines = re.findall(r"^\$ dispatch-profiler optimize (.*)$", document.read_text(), flags=re.MULTILINE)
    assert lines
    for line in lines:
        assert optimize_cli.make_parser().parse(shlex.split(line)).tunings == "tunings"


@pytest.mark.parametrize(
    ("command", "name", "option", "value"),
    [
        (optimize_cli, "tunings", ("--devices=0,1,2,3",), "devices"),
        (optimize_cli, "tunings", ("-d", "0,1,2,3"), "devices"),
        (gen_configs_cli, "log", ("-a", "gfx950"), "target"),
        (gen_configs_cli, "log", ("--architecture=gfx950", "-o", "made"), "target"),
    ],
)
def test_options_may_stand_anywhere(command, name, option, value):
    """Before, between and after hipBLASLt's path, which is optional, and what is tuned."""
    for words in (("/path/to/hipblaslt/", "here"), ("here",)):
        for at in range(len(words) + 1):
            found = command.make_parser().parse([*words[:at], *option, *words[at:]])
            assert getattr(found, name) == "here"
            assert found.hipblaslt_path == (words[0] if len(words) == 2 else None)
            assert getattr(found, value) in ("0,1,2,3", "gfx950")


def test_devices_share_the_problems(optimize, monkeypatch):
    """Numbers are devices of the target's driver; unlike ones are reported."""
    seen = []
    whole = steps.search_tunings

    def search_tunings(tunings, storage, options, *rest):
        seen.append(options.devices)
        return whole(tunings, storage, replace(options, devices=options.devices[:1]), *rest)

    monkeypatch.setattr(steps, "search_tunings", search_tunings)
    ran = optimize("--devices=null://0,null://1", "--evaluations=2")
    assert ran.status == SUCCESS and "unlike devices: null://0, null://1" in ran.err
    assert optimize("--devices=all", "--evaluations=2").status == SUCCESS
    assert seen == [("null://0", "null://1"), ("null",)]


def test_without_a_name_all_devices_share_the_problems(optimize, monkeypatch):
    """A file that names a device keeps it."""
    file = Path("tunings/SSS_NN_0.yaml")
    file.write_text(file.read_text().replace('device: "null"', 'device: "null://7"'))
    monkeypatch.setattr(
        tuning_file, "usual_devices", lambda device: SharedDevices((device, "null://1"), ("null://2",))
    )
    seen = []
    monkeypatch.setattr(
        tuning_file,
        "search",
        lambda tasks, target, storage, options, listen: seen.append(options) or NOTHING,
    )
    err = optimize("--evaluations=2").err
    assert [(each.evaluator.device, each.devices) for each in seen] == [
        ("null://7", ("null://7", "null://1")),
        ("null", ("null", "null://1")),
    ]
    assert "[Devices]: null, null://1 share 1 operation; unlike null, and therefore not used: null://2" in err


def test_with_a_cluster_its_devices_share_the_problems(optimize, monkeypatch):
    """Not those of this machine, unless they are named."""
    seen = []

    def search(tasks, target, storage, options, listen):
        seen.append(options)
        return SearchResult(tuple(OperationResult(each.operation, (), None, "") for each in tasks))

    monkeypatch.setattr(tuning_file, "search", search)
    optimize("--cluster=tcp://127.0.0.1:1")
    optimize("--cluster=tcp://127.0.0.1:1", "--devices=null://0,null://1@node7")
    assert {each.cluster for each in seen} == {Cluster("tcp://127.0.0.1:1")}
    assert [each.devices for each in seen] == [(), ("null://0", "null://1@node7")]


def test_devices_of_several_targets_are_an_error(optimize):
    file = Path("tunings/SSS_NN_0.yaml")
    file.write_text(
        file.read_text().replace('"null:faults.yaml"', '"llvm-cpu"').replace('"null"', '"local-task"')
    )
    ran = optimize("--devices=0")
    assert ran.status == USAGE
    assert "--devices: the tuning files are for llvm-cpu and null:faults.yaml" in ran.err


def test_a_device_that_does_not_open_affects_only_its_own_problems(optimize):
    """The other problems are searched, and the exit status is 1."""
    file = Path("tunings/SSS_NN_0.yaml")
    text = (
        file.read_text()
        .replace('"null:faults.yaml"', '"llvm-cpu"')
        .replace('device: "null"', 'device: "local-none"')
    )
    file.write_text(text)
    ran = optimize()
    assert ran.status == FAILED
    assert re.search(r"SSS_NN_0 +.*local-none", ran.err)
    assert re.search(r"SSS_NN_1 +matmul \S+ +0.125 ms", ran.err)


def test_a_damaged_file_is_reported_and_the_others_are_searched(optimize):
    Path("tunings/SSS_NN_0.yaml").write_text("format: dispatch_profiler tuning\noperation: 7\n")
    ran = optimize("--evaluations=2")
    assert ran.status == FAILED
    assert "skipped: tunings/SSS_NN_0.yaml: " in ran.err and re.search(
        r"SSS_NN_1 +matmul \S+ +0.125 ms", ran.err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategy=genetics",), "invalid choice: 'genetics'"),
        (("--evaluations=0",), "expected a whole number of at least 1"),
        (("--storage=mine.txt",), "the suffix does not say what kind of storage this is"),
        (("--cluster=nonsense",), "malformed scheduler address 'nonsense'"),
        (("--cluster=tls://head:1",), "tls:// addresses and --tls options go together"),
        (("--tls-ca-file=faults.yaml", "--tls-cert=faults.yaml", "--tls-key=faults.yaml"), "needs --cluster"),
        (("--devices=null://0@node7",), "null://0@node7 is on another machine"),
    ],
)
def test_what_is_wrong_is_named(optimize, arguments, message):
    ran = optimize(*arguments)
    assert ran.status == USAGE and message in ran.err


@pytest.mark.slow
def test_two_searches_on_one_storage(optimize):
    """The second is told which process searches, and changes nothing."""
    said = []

    def second(*arguments):
        said.append(optimize())
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps.SearchProgress, "add", second)
        first = optimize()
    (inner,) = said
    assert first.status == 130 and inner.status == USAGE
    assert "is searching matmul_16x32x8" in inner.err and "hint: wait for it" in inner.err
    assert optimize().status == SUCCESS
