"""Nothing in the current directory is imported, and `from dispatch_profiler import ...` loads what is used."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import dispatch_profiler
from dispatch_profiler import startup
from dispatch_profiler.isolation import Worker

ROOT = Path(__file__).parents[1]
SCRIPTS = ("generator.py", "compile.py", "profiler.py")
INSTALLED = (
    "dispatch_profiler", "iree", "jinja2", "joblib", "ml_dtypes", "numpy", "rich", "scipy", "sitecustomize",
    "torch", "triton", "usercustomize", "yaml",
)  # fmt: skip


@pytest.fixture
def hostile() -> Path:
    """A working folder with a module of every name that might be imported; each notes that it was."""
    folder = Path.cwd() / "hostile"
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *INSTALLED}:
        (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(folder / 'imported')!r}, 'a'))\n")
    return folder


def imported(folder: Path) -> list[str]:
    """The modules of a hostile folder that were executed."""
    note = folder / "imported"
    return note.read_text().split() if note.exists() else []


def run(folder: Path, *command: object, **environment: str) -> str:
    """Standard error of a command that succeeds in `folder`."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


SMALL = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32", "--default-config=only")


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_what_lies_in_the_current_directory_is_not_imported(hostile: Path):
    """IREE compiles and runs in workers."""
    run(hostile, ROOT / "generator.py", *SMALL, "--default-config=only")
    run(hostile, ROOT / "compile.py", "-j1")
    run(hostile, ROOT / "profiler.py", "--benchmark-repetitions=1")

    assert imported(hostile) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "search_path",
    [os.pathsep, pytest.param(f".{os.pathsep}{ROOT}", marks=pytest.mark.slow)],
    ids=["empty", "dot"],
)
def test_relative_entries_of_pythonpath_do_not_count(hostile: Path, search_path: str):
    """A stray colon in PYTHONPATH means the current directory; Python imports its own modules from there."""
    for name in (*sys.stdlib_module_names, "sitecustomize", "usercustomize"):
        (hostile / f"{name}.py").unlink()

    run(hostile, ROOT / "generator.py", "--target=null", *SMALL, PYTHONPATH=search_path)
    run(hostile, ROOT / "compile.py", "-j1", PYTHONPATH=search_path)

    assert imported(hostile) == []


def test_absolute_entries_of_pythonpath_count(hostile: Path, monkeypatch: pytest.MonkeyPatch):
    """An absolute folder is deliberate, so a worker finds a module there."""
    folder = Path.cwd() / "mine"
    folder.mkdir()
    (folder / "my_module.py").write_text("def answer():\n    return 42\n")
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{folder}{os.pathsep}.")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(hostile)
    my_module = import_module("my_module")

    with Worker() as worker:
        assert worker.call(my_module.answer) == 42
        assert worker.call(os.getenv, "PYTHONPATH") == str(folder)
    assert imported(hostile) == []


@pytest.mark.slow
def test_what_lies_beside_the_scripts_is_not_imported(hostile: Path):
    """A checkout is a current directory too."""
    for script in SCRIPTS:
        shutil.copy(ROOT / script, hostile)
    (hostile / "dispatch_profiler.py").unlink()
    (hostile / "dispatch_profiler").symlink_to(ROOT / "dispatch_profiler")

    run(hostile, "generator.py", "--target=null", *SMALL)
    run(hostile, "compile.py", "-j1")
    run(hostile, "profiler.py")

    assert imported(hostile) == []


INSTALLED_COMMANDS = {
    "dispatch-generator": "generate",
    "dispatch-compile": "compile_",
    "dispatch-profiler": "command",
}


@pytest.mark.slow
def test_installed_commands_do_not_import_from_it(hostile: Path, tmp_path: Path):
    """Scripts as pip writes them, every subcommand once."""
    for name, function in INSTALLED_COMMANDS.items():
        lines = (
            f"import sys\nsys.path.append({str(ROOT)!r})\nfrom dispatch_profiler.startup import {function}\n"
        )
        (tmp_path / name).write_text(f"{lines}sys.exit({function}())\n")

    run(hostile, tmp_path / "dispatch-generator", "--target=null", *SMALL)
    run(hostile, tmp_path / "dispatch-compile", "-j1", "--bundle=out.zip")
    program = tmp_path / "dispatch-profiler"
    run(hostile, program, "profile", "--output=data.csv", "--benchmark-repetitions=6", "--confirm")
    run(hostile, program, "profile", "--bundle=out.zip", "--providers=iree,numpy")
    run(hostile, program, "compare", "data.jsonl", "data.jsonl")
    run(hostile, program, "report", "data.jsonl")
    run(hostile, program, "join", "data.jsonl", "-o", "joined.csv")

    assert imported(hostile) == []


def test_what_a_command_starts_has_no_relative_entries_of_pythonpath(hostile: Path):
    """Such as the tools of `--build-dir`, some of which are Python scripts."""
    code = (
        "import os, subprocess, sys; from dispatch_profiler import startup; startup.forget_current_directory(); "
        "subprocess.run([sys.executable, '-c', 'import sys; sys.path.remove(str()); import numpy'], check=False)"
    )
    for name in (*sys.stdlib_module_names, "sitecustomize", "usercustomize", "dispatch_profiler"):
        (hostile / f"{name}.py").unlink()

    run(hostile, "-c", code, PYTHONPATH=f"{ROOT}{os.pathsep}.{os.pathsep}")

    assert imported(hostile) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="joblib's processes are refused there")
def test_the_processes_of_joblib_do_not_import_from_it(hostile: Path):
    run(hostile, ROOT / "generator.py", "--target=null", "--problem-m=16,32", *SMALL[1:])
    run(hostile, ROOT / "compile.py", "-j2", "--executor=loky")

    assert imported(hostile) == []


def test_the_hostile_folder_is_hostile(hostile: Path):
    """The test of these tests: Python alone does import from it."""
    subprocess.run([sys.executable, "-c", "import numpy"], cwd=hostile, check=False)

    assert "numpy" in imported(hostile)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_dependency_is_one_sentence_with_the_command_that_installs_it(script: str):
    """Without `site` there are no installed packages."""
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / script)],
        env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    command = f"{sys.executable} -m pip install --editable {ROOT}"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{script}: error: numpy is not installed; run: {command}\n"


@pytest.mark.parametrize(
    ("missing", "stated", "installs"),
    [
        ("numpy", ["jinja2>=3.1", "numpy>=1.26", "z3-solver; extra == 'smt'"], "'numpy>=1.26'"),
        ("yaml", ["jinja2>=3.1", "pyyaml>=6.0"], "'jinja2>=3.1' 'pyyaml>=6.0'"),
        ("numpy", PackageNotFoundError(), "numpy"),
    ],
    ids=["named as it is imported", "named otherwise", "a copy that is not installed"],
)
def test_without_a_checkout_the_command_names_packages(monkeypatch, tmp_path, missing, stated, installs):
    def requires(package: str) -> list[str]:
        if isinstance(stated, Exception):
            raise stated
        return stated

    monkeypatch.setattr("importlib.metadata.requires", requires)
    folder = str(tmp_path / "site-packages" / "dispatch_profiler")

    assert startup.install_command(missing, folder) == f"{sys.executable} -m pip install {installs}"


def test_a_module_of_our_own_that_is_missing_is_a_defect(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        startup.start("dispatch_profiler.no_such_module")


def test_what_is_imported_before_ctrl_c_is_handled_is_little():
    """importlib.metadata takes longer than all the rest, in every command and worker."""
    code = "import sys, dispatch_profiler.__main__; sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run(
        [sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )


DROPS_CTRL_C = """
import signal, sys, time, types, weakref
from dispatch_profiler import startup

class Lock:
    pass

def main(prog):
    lock = Lock()
    kept = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
    del lock
    time.sleep(60)
    return 0

sys.modules["command"] = types.SimpleNamespace(main=main)
sys.exit(startup.start("command", prog="tune"))
"""


def test_ctrl_c_in_a_callback_of_a_weak_reference_is_not_lost():
    """Python drops what such a callback raises. Each import has some."""
    done = subprocess.run(
        [sys.executable, "-c", DROPS_CTRL_C], capture_output=True, text=True, timeout=50, check=False
    )

    assert done.returncode == 130
    assert done.stderr == "tune: interrupted\n"


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch, capsys):
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(startup, "import_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["/bin/dispatch-compile"])

    assert startup.start("dispatch_profiler.library.compile_cli") == 130
    assert capsys.readouterr().err == "dispatch-compile: interrupted\n"


SOURCE = Path(dispatch_profiler.__file__)
#: To add a name is a promise; to remove one belongs in the CHANGELOG, under Changed.
NAMES = {
    "Attention", "BatchMatmul", "BiasBackward", "BuildRequest", "Built", "Cache", "Candidate", "Captured", "Choices", "CompareOptions",
    "CompileOptions", "CompilerError", "Configuration", "Contraction", "Conv1d", "Conv2d", "Conv3d", "CpuTarget", "CpuTiles",
    "CudaTarget", "Default", "Device", "Dispatch", "DispatchProfilerError", "ElementType", "ElementTypes",
    "Epilogue", "Evaluator", "EvaluatorOptions", "ExportedModel", "Extern", "Flow", "Formed", "GpuTiles", "IreeCompiler",
    "KernelObject", "KernelSource", "Launch", "LeftToTorch", "LayerNorm", "LayerNormInputBackward", "LayerNormWeightBackward", "Library", "Limits", "ListedConfiguration", "Manifest", "Matmul",
    "MeasureOptions", "Measurement", "Microkernel", "MissingDependency", "MmaTiles", "Mode", "NullCompiler",
    "NullTarget", "Operation", "Plan", "Program", "Provenance", "Record", "RocmTarget", "RunComparison",
    "Selection", "SimtTiles", "Space", "State", "StopRule", "StoredRecord", "Sweep", "Target", "Tensor",
    "Tree", "TreeCandidates", "TritonAttention", "TritonRows", "TritonTiles", "TunedModel", "UsageError", "Verdict", "VulkanTarget", "Workload",
    "WorkloadEntry", "WorkloadReading", "build_key", "build_request", "capture", "compare_records", "compile_tree", "compiler_for",
    "configuration_from_dict", "draw_valid", "emit", "export_model", "fastest_form", "load_configurations", "load_manifest", "misses",
    "open_device", "operation_from_dict", "parse_target", "plan_generation", "read_dataframe", "read_records", "read_workload",
    "rejection_reason", "render_module", "render_page", "shipped_configurations", "spaces",
    "sweep_workload", "tune", "unpacked", "write_bundle", "write_workload",
}  # fmt: skip


def declared() -> dict[str, str]:
    """Name -> module, as type checkers see it."""
    (block,) = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.asname or "": f"{node.module}.{name.name}" for node in imports for name in node.names}


def test_the_list_is_the_one_that_is_promised():
    assert set(dispatch_profiler.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_what_its_module_has(name: str):
    """Type checkers see the same."""
    module, _, attribute = declared()[name].rpartition(".")
    assert attribute == name
    assert getattr(dispatch_profiler, name) is getattr(import_module(module), name)


def test_type_checkers_see_the_same_list():
    assert set(declared()) == NAMES


def test_the_names_are_listed_and_imported_by_a_star():
    assert set(dir(dispatch_profiler)) >= NAMES
    found: dict[str, object] = {}
    exec("from dispatch_profiler import *", found)
    assert set(found) - {"__builtins__"} == NAMES


def test_the_program_of_the_readme_imports_from_one_place():
    text = (SOURCE.parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
    assert {each.module for each in imports} == {"pathlib", "dispatch_profiler"}
    assert {
        name.name for each in imports if each.module == "dispatch_profiler" for name in each.names
    } <= NAMES


def test_any_other_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'dispatch_profiler' has no attribute 'Matmull'"):
        _ = dispatch_profiler.Matmull


def modules_after(program: str) -> set[str]:
    """What Python has imported when `program` ends."""
    command = [
        sys.executable,
        "-c",
        f"import sys; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)",
    ]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_else():
    """Neither numpy nor any part of itself but the version, and the function that makes its exports."""
    loaded = modules_after("import dispatch_profiler")
    found = {name for name in loaded if name.startswith(("dispatch_profiler.", "numpy", "iree", "torch"))}
    assert found == {"dispatch_profiler.exports", "dispatch_profiler.version"}


def test_describing_work_imports_neither_iree_nor_torch():
    loaded = modules_after(
        "from dispatch_profiler import Matmul, CpuTiles, Workload, parse_target, plan_generation"
    )
    assert "dispatch_profiler.operations" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in ("iree", "torch", "triton", "joblib")]


def without_torch(code: str, *arguments: str) -> None:
    """Run `code`, which has `main` and `parsers`, in a process in which torch, an extra, is not installed."""
    start = "import sys; sys.modules['torch'] = None; from dispatch_profiler.__main__ import main, parsers; "
    command = [sys.executable, "-c", start + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_starts_without_torch():
    without_torch("parsers()")


@pytest.mark.slow
def test_a_workload_is_tuned_without_torch():
    target = f"--target=null:{ROOT}/docs/times.yaml"

    without_torch(
        "sys.exit(main(sys.argv[1:]))", "tune", f"{ROOT}/docs/two_products.yaml", target, "--evaluations=4"
    )

    assert Path("tuned/final/library.json").exists()


def test_a_compiler_process_does_not_import_joblib():
    """It would start a fifth more slowly; `pool` is the module whose functions it is given."""
    loaded = modules_after("import dispatch_profiler.compiler.workers.pool")
    assert "dispatch_profiler.isolation" in loaded
    assert "joblib" not in loaded


PACKAGE = Path(__file__).parents[1] / "dispatch_profiler"
#: Scripts of the documents that this package descends from, and a line of their help.
COMMAND_FILES = {
    "boo/driver/driver.py": "MIOpen",
    "boo/driver/preload.py": "Compile the kernels of MIOpen commands",
    "tuner/commands/gen_configs.py": "LOG",
    "tuner/commands/optimize.py": "--log-summary",
}


@pytest.mark.parametrize("script", COMMAND_FILES)
def test_a_command_runs_by_the_path_of_its_file(script: str, tmp_path: Path):
    """Before, most of these files defined a command, printed nothing and ended with status 0."""
    ran = subprocess.run(
        [sys.executable, PACKAGE / script, "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0 and not ran.stderr
    assert ran.stdout.startswith(f"usage: {Path(script).name} ") and COMMAND_FILES[script] in ran.stdout


def test_no_file_with_a_command_is_silent_as_a_script():
    """Each module that defines `main` ends by starting a command."""
    commands = [each for each in PACKAGE.rglob("*.py") if "\ndef main(" in each.read_text()]
    assert len(commands) > 15
    for each in commands:
        assert '\nif __name__ == "__main__":\n    sys.exit(' in each.read_text(), each
