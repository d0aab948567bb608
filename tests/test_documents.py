"""Every command line and program of README.md and docs/ runs.

By default with few configurations and short measurements, in this process where nothing has to crash; the slow tests run
them exactly as they are, in a shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_helpers import ROOT, load_script
from worker_helpers import InProcessWorker, use_in_process_workers

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import user_cache
from dispatch_profiler.profiler.measurement.peaks import Peaks, PeaksFile, cpu_key
from dispatch_profiler.targets import host_cpu
from dispatch_profiler.tuner.commands import prove_cli

_pages = load_script("benchmarks/_pages.py")
Line, Page = _pages.Line, _pages.Page
DOCUMENTS = [
    "README.md",
    "docs/null.md",
    "docs/targets.md",
    "docs/convolutions.md",
    "docs/forms.md",
    "docs/epilogues.md",
    "docs/measurement.md",
    "docs/compare.md",
    "docs/report.md",
    "docs/bundles.md",
    "docs/workloads.md",
    "docs/boo.md",
    "docs/pytorch.md",
    "docs/architecture.md",
    "docs/kernels.md",
]
#: Documents whose commands take long: they tune, capture, compile and measure models and lists of convolutions, compile
#: with Triton, or measure several times, also with faults that hang. The commands themselves are tested in tests/boo, tests/tuner and tests/profiler.
SLOW_DOCUMENTS = (
    "docs/measurement.md",
    "docs/report.md",
    "docs/boo.md",
    "docs/pytorch.md",
    "docs/architecture.md",
    "docs/kernels.md",
)
#: Faults in them end a worker process, or keep it from ending.
WITH_FAULTS = ("docs/null.md", "docs/report.md")
#: Ends a line whose standard output is a file.
REDIRECTED = re.compile(r" >([\w.-]+)$")
#: First words of a command line -> the command that they stand for.
COMMANDS = {
    ("python", "generator.py"): ["generate"],
    ("python", "compile.py"): ["compile", "-j1"],
    ("python", "profiler.py"): ["profile"],
    ("python", "-m", "dispatch_profiler"): [],
    ("dispatch-profiler",): [],
}
#: `make` is run by the slow test below and by CI itself.
OURS = ("python ", "dispatch-profiler ")
#: Sets a variable for the lines that follow it.
EXPORT = re.compile(r"export (\w+)=(.*)")
#: A program of the documents, which has no arguments.
SCRIPT = re.compile(r"python (docs/\w+\.py)")


#: What the program of the README prints.
README_RESULT = "matmul_256x256x256_f32t_f32t_f32t_tile_config_64x128_8x32x4 SUCCESS"
#: Configurations of each target's family that stand for its whole list, and cover every kind of operation.
FEW = {
    "llvm-cpu": """
configurations:
  - {kinds: [matmul, batch_matmul], distribution: [64, 128], vector: [8, 32, 4]}
  - {kinds: [conv2d], distribution: [1, 7, 28, 32], vector: [1, 1, 4, 32, 1, 1, 1]}
  - {kinds: [matmul, batch_matmul], types: [f32], flow: data_tiling}
""",
    "cuda": """
configurations:
  - {types: [f16], instruction: mmasync, workgroup: [64, 64], reduction: [64], stages: 1}
""",
    "rocm": """
configurations:
  - {types: [f16, f32], instruction: mfma, workgroup: [64, 64], reduction: [64]}
""",
}
#: Extents in options and in names of dispatches.
EXTENTS = re.compile(r"(?<=-[mnkhwc]=)\d+\b|(?<=matmul_)\d+x\d+x\d+")
#: All but the last value of an option of the generator that takes several; kinds of operations are kept.
OTHER_VALUES = re.compile(r"(?<= --)((?!op-kind|configurations|target)[\w-]+=)[^ ,']+,(?:[^ ,']+,)*")
#: Where options end: the compiler's own flags, what the shell is told to do with the command, or its exit status.
END_OF_OPTIONS = re.compile(r" (?:-- |\| |>| # )|$")


def blocks(document: str, language: str) -> list[str]:
    return Page.read(ROOT / document).blocks(language)


def commands(document: str) -> list[str]:
    return [line.text for line in Page.read(ROOT / document).lines()]


def no_figure_is_implausible() -> None:
    """Store peaks far above those of any machine.

    Peaks that are measured while other tests use the cores are too low, and a kernel that is measured later faster than
    they allow. `test_peaks` is about such figures.
    """
    peaks = Peaks({"f32": 1e18, "f64": 1e18}, 1e18, "far above those of any machine")
    PeaksFile(user_cache() / "machines", cpu_key(), lambda: peaks).again()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: None) -> Path:
    """A folder with the project's files, as after a clone, but nothing generated; and what `quicker` names."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name, text in FEW.items():
        (folder / f"few_{name}.yaml").write_text(text)
    for name in (
        "generator.py",
        "compile.py",
        "profiler.py",
        "dispatch_profiler",
        "docs",
        "benchmarks",
        "tests",
    ):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    no_figure_is_implausible()
    # `python` is the interpreter of the tests, wherever that lies.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


def smaller(extents: str, largest: int) -> str:
    """`768x512x8` -> `32x32x8`."""
    return "x".join(str(min(int(extent), largest)) for extent in extents.split("x"))


def quicker(line: str, largest: int = 32) -> str:
    """`line` for smaller problems, with options that make it compile and measure less.

    The last value of an option counts.
    """
    line = EXTENTS.sub(lambda match: smaller(match.group(), largest), line)
    if re.search(r"generator\.py|dispatch_profiler generate|dispatch-profiler generate", line):
        family = re.search(r"--target=([\w-]+)", line)
        name = family.group(1) if family else "llvm-cpu"
        line = OTHER_VALUES.sub(r"\1", line)
        more = f" --configurations=few_{name}.yaml" if name in FEW and "--configurations" not in line else ""
    elif re.search(r"profiler\.py|dispatch_profiler profile|dispatch-profiler profile", line):
        more = " --budget=0.05 --precision=20"
    elif " compare --live" in line:
        more = " --budget=1"
    elif " boo " in line:
        more = " --iter=3"
    elif " tune " in line:
        # A model is tuned on its own device.
        more = " --time=1s" if ".py:" in line else " --target=null"
    else:
        more = ""
    end = END_OF_OPTIONS.search(line)
    assert end is not None
    return line[: end.start()] + more + line[end.start() :]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python generator.py --m=64", "python generator.py --m=32 --configurations=few_llvm-cpu.yaml"),
        ("python generator.py --target=null --problem-m=768 --conv-h=100", "python generator.py --target=null --problem-m=32 --conv-h=32"),
        ("python compile.py --dispatches='matmul_768x512x8_f32*' --memory-limit=4096", "python compile.py --dispatches='matmul_32x32x8_f32*' --memory-limit=4096"),
        ("python generator.py --op-kind=matmul,conv2d --layout=tt,tn --conv-n=1,8,9", "python generator.py --op-kind=matmul,conv2d --layout=tn --conv-n=9 --configurations=few_llvm-cpu.yaml"),
        ("python generator.py --target=cuda:sm_80", "python generator.py --target=cuda:sm_80 --configurations=few_cuda.yaml"),
        ("python generator.py --target=null", "python generator.py --target=null"),
        ("dispatch-profiler boo conv -n 1", "dispatch-profiler boo conv -n 1 --iter=3"),
        ("dispatch-profiler tune workload.yaml", "dispatch-profiler tune workload.yaml --target=null"),
        ("python generator.py --configurations=own.yaml", "python generator.py --configurations=own.yaml"),
        ("python profiler.py --budget=1 >run.jsonl", "python profiler.py --budget=1 --budget=0.05 --precision=20 >run.jsonl"),
        ("python compile.py -- --iree-opt-level=O2", "python compile.py -- --iree-opt-level=O2"),
        ("python -m dispatch_profiler compare --live a b  # exit status 1", "python -m dispatch_profiler compare --live a b --budget=1  # exit status 1"),
    ],
)  # fmt: skip
def test_a_quicker_line_keeps_every_option(line: str, expected: str):
    assert quicker(line) == expected


def exported(line: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `line` sets a variable, which is then set here too."""
    found = EXPORT.fullmatch(line)
    if found:
        monkeypatch.setenv(*found.groups())
    return found is not None


def run_in_a_shell(line: str) -> None:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == Line(line).status, f"{line}\n{done.stdout[-2000:]}\n{done.stderr}"


def run_script(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `python SCRIPT` does, without importing torch and the compiler again."""
    torch: Any = pytest.importorskip("torch")
    torch._dynamo.reset()  # a second shape would be a dynamic one
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(Path(script).parent))
        patch.setattr(sys, "argv", [script])
        runpy.run_path(script, run_name="__main__")


def own_arguments(line: str) -> list[str] | None:
    """What `dispatch-profiler` takes for `line`, whose output may be redirected; None if only a shell can run it."""
    line = REDIRECTED.sub("", Line(line).command)
    words = shlex.split(line)
    if re.search(r"[|>]", re.sub(r"'[^']*'", "", line)):
        return None
    for first, command in COMMANDS.items():
        if tuple(words[: len(first)]) == first:
            return [*command, *words[len(first) :]]
    return None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python generator.py --m=64 --lhs='f32'", ["generate", "--m=64", "--lhs=f32"]),
        ("python compile.py --num-cpu=2 -- --flag", ["compile", "-j1", "--num-cpu=2", "--", "--flag"]),
        ("python -m dispatch_profiler report a.jsonl", ["report", "a.jsonl"]),
        ("dispatch-profiler join a b", ["join", "a", "b"]),
        ("python profiler.py --format=json >run.jsonl", ["profile", "--format=json"]),
        ("python profiler.py >>run.jsonl", None),
        ("python compile.py  # exit status 1", ["compile", "-j1"]),
        ("python compile.py | cat", None),
        ("dispatch-profiler list --dispatches='a|b'", ["list", "--dispatches=a|b"]),
        ("python -c 'import pandas'", None),
    ],
)
def test_a_line_that_needs_no_shell_is_a_call(line: str, expected: list[str] | None):
    assert own_arguments(line) == expected


@contextlib.contextmanager
def redirected(line: str) -> Iterator[None]:
    """Meanwhile, standard output is the file that `line` names, if it names one."""
    found = REDIRECTED.search(line)
    if found is None:
        yield
        return
    with Path(found[1]).open("w") as file, contextlib.redirect_stdout(file):
        yield
    assert Path(found[1]).stat().st_size


# torch's own modules are deprecated by torch, which inductor imports.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "document",
    [pytest.param(each, marks=pytest.mark.slow if each in SLOW_DOCUMENTS else ()) for each in DOCUMENTS],
)
def test_every_command_line_runs(document: str, checkout: Path, monkeypatch, capsys):
    # What a cold call costs exceeds the time of a smaller product: its figure would be implausible.
    largest = 256 if any("--mode=cold" in line for line in commands(document)) else 32
    lines = [quicker(line, largest) for line in commands(document) if line.startswith((*OURS, "export "))]
    assert lines
    if document not in WITH_FAULTS:
        use_in_process_workers(monkeypatch)
    for line in lines:
        if exported(line, monkeypatch):
            continue
        arguments, script = own_arguments(line), SCRIPT.fullmatch(line)
        if script:
            run_script(script.group(1), monkeypatch)
        elif arguments is None:
            run_in_a_shell(line)
        else:
            with redirected(line):
                status = main(arguments)
            assert status == Line(line).status, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_line_runs_as_it_stands(document: str, checkout: Path, monkeypatch):
    for line in commands(document):
        if not exported(line, monkeypatch) and line.startswith(OURS):
            run_in_a_shell(line)


#: Tutorials: each runs in a folder of its own, with the files that it shows.
TUTORIALS = ["docs/tutorials/shapes.md", "docs/tutorials/model.md", "docs/tutorials/log.md"]
#: Commands of which a target decides what they compile for and measure on.
WITH_TARGET = re.compile(r"dispatch-profiler (?:generate|gen_configs|tune (?!--recheck))")
#: Times of the null target in which something is faster than the compiler's default.
NULL_TIMES = '"*_default": {time_ms: 0.5}\n"*": {time_ms: 0.25}\n'


def save_files(tutorial: str, divisor: int = 1) -> None:
    """With each extent of three digits and more divided by `divisor`."""
    for file in Page.read(ROOT / tutorial).saved():
        text = re.sub(r"\b\d{3,}\b", lambda match: str(int(match[0]) // divisor), file.text)
        Path(file.name).write_text(text if divisor > 1 else file.text)


def in_own_folder(tutorial: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The lines of a tutorial, after its first one, which makes a folder and enters it."""
    first, *lines = commands(tutorial)
    made = re.fullmatch(r"mkdir (\w+) && cd \1", first)
    assert made is not None, first
    Path(made[1]).mkdir()
    monkeypatch.chdir(made[1])
    save_files(tutorial)
    for line in lines:
        if not exported(line, monkeypatch):
            yield line


@pytest.mark.parametrize(
    "tutorial", ["docs/tutorials/shapes.md", pytest.param("docs/tutorials/log.md", marks=pytest.mark.slow)]
)
def test_tutorials_run_on_the_null_target(tutorial: str, checkout: Path, in_process, monkeypatch, capsys):
    for line in in_own_folder(tutorial, monkeypatch):
        save_files(tutorial, divisor=16)
        Path("times.yaml").write_text(NULL_TIMES)
        target = " --target=null:times.yaml" if WITH_TARGET.match(line) else ""
        here = quicker(Line(line).command + target).removesuffix(" --target=null")
        here += " --evaluations=4" if re.search(r" (?:tune|optimize) ", line) else ""
        arguments = own_arguments(here)
        assert arguments is not None, line
        assert main(arguments) == Line(line).status, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_tutorials_run_as_they_stand(tutorial: str, checkout: Path, monkeypatch):
    for line in in_own_folder(tutorial, monkeypatch):
        run_in_a_shell(line)


def test_tutorials_say_how_long_they_take():
    for tutorial in TUTORIALS:
        assert re.search(r"takes? .*minutes on two cores", (ROOT / tutorial).read_text()), tutorial


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize("with_tls", [False, True])
def test_the_clusters_of_the_documents_compile(checkout: Path, with_tls: bool):
    """The commands in their order, on this machine and free ports; those of Dask in the background."""
    lines = commands("docs/cluster.md")
    if not with_tls:
        lines = lines[: next(i for i, line in enumerate(lines) if line.startswith("openssl"))]
    ports = {False: free_port(), True: free_port()}
    background = []
    try:
        for line in lines:
            here = quicker(line) if line.startswith("python generator.py") else line
            here = here.replace("8786", ports["tls" in line]).replace("tls://head", "tls://127.0.0.1")
            if line.startswith("dask "):
                background.append(subprocess.Popen(["sh", "-c", f"exec {here} >{len(background)}.log 2>&1"]))
                continue
            done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
            # A scheduler that is up may not have its workers yet.
            while "has no workers" in done.stderr or "no scheduler answers" in done.stderr:
                assert all(process.poll() is None for process in background)
                time.sleep(1)  # asking again costs more than the workers take to start
                done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            assert "warning" not in done.stderr
    finally:
        for process in background:
            process.terminate()
            process.wait()
    assert len(background) == (5 if with_tls else 3)
    assert len(list(checkout.rglob("*_verify.vmfb"))) >= 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_cluster_of_tuning_compiles_and_measures(checkout: Path):
    """The commands in their order, on a free port; those of Dask in the background."""
    lines = [each for each in commands("docs/tuning.md") if "8786" in each]
    port, background = free_port(), []
    assert [line.split()[0] for line in lines] == ["dask", "dask", "dask", "dispatch-profiler"]
    try:
        for line in [each.replace("8786", port) for each in lines]:
            if line.startswith("dask "):
                background.append(subprocess.Popen(["sh", "-c", f"exec {line} >{len(background)}.log 2>&1"]))
                continue
            workers = [sys.executable, "-c", _WAIT_FOR_WORKERS, f"tcp://127.0.0.1:{port}"]
            subprocess.run(workers, check=True, timeout=120)
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        for process in background:
            process.terminate()
            process.wait()
    lines = Path("cluster_tuned/tunings/search.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["provenance"]["device"] for record in records} == {"null://0@node7"}


#: Until the scheduler listens, because a client waits longer after each failed connection; then for both workers.
_WAIT_FOR_WORKERS = """
import contextlib, socket, sys, time, distributed
host, port = sys.argv[1].removeprefix("tcp://").split(":")
while True:
    with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port))):
        break
    time.sleep(0.1)
distributed.Client(sys.argv[1], timeout=100).wait_for_workers(2, timeout=100)
"""


#: Pages whose lines and programs other tests run: here, and where a comment says so.
TESTED_ELSEWHERE = {
    "docs/c_export.md",
    "docs/cluster.md",
    "docs/configurations.md",
    "docs/gpu.md",
    "docs/index.md",  # benchmarks/tours.py
    "docs/library.md",
    "docs/model_export.md",  # tests/boo/model_export/test_exported_models.py
    "docs/tuning.md",  # and tests/tuner/search/test_search.py
}


def pages() -> list[str]:
    """README.md and every page of the site."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *found]


def test_every_page_with_lines_to_run_is_run():
    running = {each for each in pages() if commands(each) or blocks(each, "python")} - {"CONTRIBUTING.md"}

    assert running == {*DOCUMENTS, *TUTORIALS, *TESTED_ELSEWHERE}


def test_lines_to_run_are_marked_as_such():
    """Only lines of `console` blocks are run: a prompt anywhere else is a mistake."""
    for page in pages():
        text = (ROOT / page).read_text()
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            assert language == "console" or not re.search(r"^\$ ", block, flags=re.MULTILINE), (
                f"{page}:\n{block}"
            )


def test_no_command_line_is_left_untested():
    every = [line for document in DOCUMENTS for line in commands(document)]

    assert {line.split()[0] for line in every} <= {"python", "dispatch-profiler", "make", "export"}
    assert sorted(line.split()[1] for line in every if line.startswith("make")) == ["quickstart", "test"]


def test_the_program_of_the_readme_runs(checkout: Path, in_process: None, capsys: pytest.CaptureFixture[str]):
    (program,) = blocks("README.md", "python")

    exec(program, {})

    assert README_RESULT in capsys.readouterr().out


@pytest.mark.slow
def test_the_program_of_the_readme_runs_in_a_process_of_its_own(checkout: Path):
    (program,) = blocks("README.md", "python")

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert README_RESULT in done.stdout


# torch's own modules are deprecated by torch, which inductor imports.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.slow  # the programs of docs/boo.md compile models, too
def test_the_programs_about_models_run(checkout: Path, in_process: None, caplog: pytest.LogCaptureFixture):
    torch: Any = pytest.importorskip("torch")
    programs = blocks("docs/pytorch.md", "python")
    assert len(programs) >= 3

    for program in programs:
        torch._dynamo.reset()  # a second shape would be a dynamic one
        exec(program, {})

    assert "torch computes it" not in caplog.text
    assert "conv2d" in Path("workload.yaml").read_text()


def test_the_pandas_line_of_the_readme_prints_no_row_without_a_figure(tmp_path, monkeypatch, capsys):
    """Rows of dispatches that were not measured, as `--append` with `--profiling-enabled=false` adds them."""
    (line,) = (each for each in commands("README.md") if "read_dataframe" in each)
    monkeypatch.chdir(tmp_path)
    rows = ["fast,0.5,200.0,0.1", "slow,1.0,100.0,0.1", "wrong,,,", "lacking,,,"]
    Path("data.csv").write_text("Configuration,Runtime(ms),GFLOPs,spread\n" + "\n".join(rows))
    exec(shlex.split(line)[2], {})
    printed = capsys.readouterr().out
    assert "fast" in printed and "slow" in printed and "NaN" not in printed


def test_the_program_about_gpus_is_complete():
    """It defines a function, whose names exist; calling it needs a GPU."""
    found: dict[str, Any] = {}
    (program,) = blocks("docs/gpu.md", "python")
    exec(program, found)
    assert set(found["call_of"].__code__.co_names) <= {*found, "load", "read_bytes", "bind"}


def test_the_configurations_of_the_documents_load():
    from dispatch_profiler.configurations import load_configurations, shipped_configurations

    texts = blocks("docs/configurations.md", "yaml")
    assert len(texts) == 7
    for text in texts:
        Path("own.yaml").write_text(text)
        rows = yaml.safe_load(text)["configurations"]
        expected = sum(len(shipped_configurations(row["list"])) if "list" in row else 1 for row in rows)
        assert len(load_configurations(Path("own.yaml"))) == expected


def test_the_search_space_of_the_documents_is_drawn_from(checkout: Path):
    (program,) = blocks("docs/configurations.md", "python")

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == ["default", "cpu_tiles", "microkernel", "flow"]
    assert lines[1].startswith("cpu_tiles: 954068544 points, ['distribution_m', ")
    valid = [line.endswith(" is valid") for line in lines[4:]]
    documented = [False, *[True] * 3, *[False] * 5]
    if host_cpu().vector_bytes == 64:
        assert valid == documented
    else:  # the compiler takes fewer tiles
        assert all(
            is_documented for is_valid, is_documented in zip(valid, documented, strict=True) if is_valid
        )


@pytest.mark.slow
def test_the_library_of_the_documents_is_made_listed_and_merged(checkout: Path, capsys):
    (program,) = blocks("docs/library.md", "python")
    exec(program, {})
    assert "Estimate(value=1.99" in capsys.readouterr().out
    shutil.copytree("tuned", "new")

    lines = commands("docs/library.md")
    assert {line.split()[1] for line in lines} == {"library", "merge"}
    measuring = [line for line in lines if line.startswith("dispatch-profiler library prove ")]
    assert len(measuring) == 2
    for line in measuring:  # tests/tuner/commands/test_tune.py runs them
        prove_cli.make_parser().parse(line.split()[3:])
    for line in [each for each in lines if each not in measuring]:
        assert main(own_arguments(line)) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.works_on_ir
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_program_in_c_of_the_documents_runs(checkout: Path, capsys):
    save_library_for_c()
    first, second = commands("docs/c_export.md")
    assert main(own_arguments(first)) == 0, capsys.readouterr().err
    assert main(own_arguments(second)) == 0, capsys.readouterr().err
    declaration, program = blocks("docs/c_export.md", "c")
    words = " ".join(declaration.split()).replace("( ", "(")
    assert words in Path("kernels/kernels.h").read_text()
    Path("program.c").write_text(program)
    document = (ROOT / "docs/c_export.md").read_text()
    (line,) = re.findall(r"^    (cc .*)$", document, flags=re.M)
    subprocess.run(line.replace("cc", "gcc", 1), shell=True, check=True)
    done = subprocess.run("./program", capture_output=True, text=True, check=True)
    assert f"prints `{done.stdout.strip()}`" in document


def save_library_for_c() -> None:
    """The library `tuned`, with the entry that docs/c_export.md exports."""
    from dispatch_profiler import Dispatch, Library, Matmul, Provenance
    from dispatch_profiler.compiler import compiler_for
    from dispatch_profiler.configurations import Microkernel
    from dispatch_profiler.library import Entry, Estimate
    from dispatch_profiler.operations import Epilogue
    from dispatch_profiler.profiler.records.machine import Machine
    from dispatch_profiler.targets import parse_target

    target = parse_target("llvm-cpu")
    origin = Provenance(
        "local-task", target.name, f"compiler {compiler_for(target).revision}, runtime", 7, machine=Machine("A", 2)
    )  # fmt: skip
    operation = Matmul(64, 256, 128, rhs_layout="n", epilogue=Epilogue.parse("bias"))
    configuration = Microkernel((32, 64), (4, 1, 32), packed=True)
    one = Estimate(1.0, 1.0, 1.0)
    Library([Entry(Dispatch(operation, configuration), one, one, origin)]).save(Path("tuned"))


def test_the_tuning_files_of_the_documents_are_written(checkout: Path, capsys):
    from dispatch_profiler.tuner.tunings.tuning_file import read_tuning

    for line in [each for each in commands("docs/tuning.md") if " gen_configs " in each]:
        assert main(own_arguments(line)) == 0, f"{line}\n{capsys.readouterr().err}"
    assert Path("tunings/SSS_TN_0.yaml").exists()
    (text,) = blocks("docs/tuning.md", "yaml")
    Path("own.yaml").write_text(text)
    assert read_tuning(Path("own.yaml")).name == "BBS_TN_0"


@pytest.mark.slow
def test_the_transcript_of_tuning_is_what_is_printed(checkout: Path, in_process, capsys, monkeypatch):
    from dispatch_profiler.profiler.compare import live

    monkeypatch.setattr(live, "Worker", InProcessWorker)
    first, second = (each for each in commands("docs/tuning.md") if "null_tuned" in each)
    assert main(own_arguments(first)) == 0
    printed = capsys.readouterr()
    lines = iter([*printed.err.splitlines(), *printed.out.splitlines()])
    document = (ROOT / "docs/tuning.md").read_text()
    (transcript,) = re.findall(r"^```\n\n((?:    .*\n)+)(?=\n```console\n.*--recheck)", document, flags=re.M)
    for line in transcript.splitlines():
        assert line == "    ..." or line[4:] in lines, line  # in this order
    assert main(own_arguments(second)) == 0


def test_the_faults_of_the_documents_are_those_of_the_file():
    (text,) = blocks("docs/null.md", "yaml")

    assert text == (ROOT / "docs/faults.yaml").read_text()


def test_the_workload_of_the_documents_is_read():
    from dispatch_profiler import Conv2d, read_workload

    (text,) = blocks("docs/workloads.md", "yaml")
    Path("own.yaml").write_text(text)

    found = read_workload(Path("own.yaml"))
    assert not found.skipped
    assert [entry.count for entry in found.workload.entries] == [48, 1]
    assert found.workload.operations[1] == Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1))


def test_the_tables_of_the_documents_are_read(tmp_path: Path):
    from dispatch_profiler import read_workload

    kinds = []
    for number, text in enumerate(blocks("docs/workloads.md", "csv")):
        path = tmp_path / f"shapes_{number}.csv"
        path.write_text(text)
        found = read_workload(path)
        assert not found.skipped and not found.notes
        kinds += [(entry.operation.kind, entry.count) for entry in found.workload.entries]
    assert kinds == [("matmul", 48), ("matmul", 12), ("conv2d", 3), ("conv2d", 1)]


def test_the_workload_program_of_the_documents_runs(checkout: Path):
    (program,) = blocks("docs/workloads.md", "python")

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    assert 'count": 10, "origin": "mine"' in Path("workload.yaml").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("without_gpu")
def test_the_transcript_of_boo_has_the_lines_that_are_printed(checkout: Path, capsys):
    """Apart from the times."""
    (line,) = (each for each in commands("README.md") if " boo " in each)
    (transcript,) = (each for each in blocks("README.md", "text") if ">>> " in each)

    assert main(own_arguments(line)) == 0

    printed = capsys.readouterr().out
    shown, promised = (re.sub(r"\d+\.\d+", "N", each) for each in (printed, transcript))
    assert shown == promised


#: The programs of docs/boo.md: signatures from shapes, from commands, and compiled ahead of time, by old and new names.
BOO_PROGRAMS = blocks("docs/boo.md", "python")
#: What stands for their ellipses. The shapes fit every call of the program that has them, in every layout.
BOO_ELLIPSES = {
    "input_shape = ...": "input_shape = (2, 1, 9, 1)",
    "weight_shape = ...": "weight_shape = (3, 1, 1, 1)",
    "dtype = ...": "dtype = torch.float32",
    "BooConv2d(...)": "BooConv2d(4, 6, 3)",
    "torch.nn.Module = ...": "torch.nn.Module = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3))",
}


# torch's own modules are deprecated by torch, which inductor imports.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("number", range(len(BOO_PROGRAMS)))
@pytest.mark.parametrize(
    "autotune",
    [pytest.param("0", id="first kernels"), pytest.param("", id="as they stand", marks=pytest.mark.slow)],
)
@pytest.mark.usefixtures("shared_cache", "in_process", "without_gpu")
def test_the_programs_of_boo_run(number: int, autotune: str, monkeypatch: pytest.MonkeyPatch):
    """Those of BOO's documents, with only the package's name changed; by default, they do not choose between kernels, and
    inductor is not called: models that it compiles have tests in tests/boo/backends."""
    pytest.importorskip("torch")
    monkeypatch.setenv("BOO_AUTOTUNE", autotune)
    Path("path/to/miopen").mkdir(parents=True)
    Path("path/to/miopen/commands_list.txt").write_text("conv -n 1 -c 2 -H 4 -W 4 -k 3 -y 1 -x 1 -F 1\n")
    found: dict[str, Any] = {}

    program = BOO_PROGRAMS[number]
    for ellipsis, text in BOO_ELLIPSES.items():
        program = program.replace(ellipsis, text)
    assert "..." not in program
    exec(program, found)

    if "dLdw" in found:
        from torch.nn.functional import conv2d

        shapes = [tuple(found[name].shape) for name in ("y", "dLdw")]
        assert shapes == [(2, 15, 31, 10), (10, 2, 2, 3)]
        images, filters = (found[name].permute(0, 3, 1, 2).double() for name in ("x", "w"))
        expected = conv2d(images, filters).permute(0, 2, 3, 1)
        assert (found["y"].double() - expected).abs().max() < 0.1
    if "populator" in found:
        # A machine with a GPU has kernels for that, too.
        assert found["cache_status"]["local-task"] == "cached" and found["failed_funcs"] == {}
        assert set(found["cache_status"].values()) == {"cached"}
    if "boo_conv" in found:
        from torch.nn.functional import conv2d

        expected = conv2d(found["x"], found["w"].permute(0, 3, 1, 2))
        assert (found["y"] - expected).abs().max() < 1e-5
    elif "replace_convs_with_boo" in found:
        assert type(found["model"][0]).__name__ == "BooConv2d"
    elif "model" in found:
        check_compiled_models(found, with_inductor=autotune == "")
    else:
        assert callable(found.get("conv") or found.get("conv2d") or found["conv_wrw"])


def check_compiled_models(found: dict[str, Any], *, with_inductor: bool) -> None:
    """What a program has compiled computes what its model computes."""
    import torch

    model, compiled = found["model"], [each for name, each in found.items() if name.endswith("boo_model")]
    compiled += [found[name] for name in ("boo_inductor_model",) if with_inductor and name in found]
    assert compiled
    x = found["x"] if "x" in found else torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        for each in compiled:
            torch.testing.assert_close(each(x), model(x))


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_link_of_the_documents_leads_somewhere():
    for page in pages():
        path = ROOT / page
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", path.read_text()):
            target = path.parent / link if link else path
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}#{anchor}"


def test_every_page_is_in_a_table_of_contents():
    index = (ROOT / "docs/index.md").read_text()
    listed = [line for block in blocks("docs/index.md", "{toctree}") for line in block.splitlines()]
    assert sorted(f"docs/{line}.md" for line in listed if re.fullmatch(r"[\w/]+", line)) == sorted(
        {each for each in pages() if each.startswith("docs/")} - {"docs/index.md"}
    )
    assert index.count("tutorials/") == 2 * len(TUTORIALS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quickstart_in_a_fresh_clone(tmp_path: Path):
    """With an empty home and no virtual environment: it sets itself up and leaves data.csv."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)

    done = subprocess.run(["make", "quickstart"], cwd=clone, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "vs default" in done.stdout
    assert len((clone / "data.csv").read_text().splitlines()) > 30
