"""`dispatch-profiler boo`: what it launches, prints and writes, and how it fails."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import PlainSignature, TorchLaunchable

from dispatch_profiler.__main__ import main as program
from dispatch_profiler.boo.driver import driver
from dispatch_profiler.boo.driver.driver import in_front, main, make_parser
from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.boo.driver.runs import execution
from dispatch_profiler.boo.driver.runs.outcomes import LaunchTimes
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.workloads.miopen import miopen_operations

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("without_gpu")

TIMES = LaunchTimes(1.0, 4.0, 2.0, 0.5, 2.0, 1.5, 2.5, samples=10, launches=10)
CONV = "conv -n 1 -c 2 -H 5 -W 4 -k 3 -y 3 -x 3 -p 1 -q 0"
TENSOR = ">>> tensor([...], device='cpu', size=(1, 3, 5, 2), dtype=torch.float32)"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, TorchLaunchable]:
    """Commands are launched by torch; the launchables by the names of their operations."""
    made: dict[str, TorchLaunchable] = {}

    def parse(command: str) -> tuple[PlainSignature, ...]:
        found = miopen_operations(command.replace(" --wrong 1", "").replace(" --failing 1", ""))
        return tuple(PlainSignature(each, f"{command} ({number})") for number, each in enumerate(found))

    def launchable(signature: PlainSignature) -> TorchLaunchable:
        scale = 2.0 if "--wrong" in signature.command else 1.0
        error = "out of luck" if "--failing" in signature.command else ""
        return made.setdefault(
            f"{signature.operation.name} {signature.command}", TorchLaunchable(signature, scale, error)
        )

    monkeypatch.setattr(BooOpRegistry, "parse_commands", staticmethod(parse))
    monkeypatch.setattr(execution, "get_launchable", launchable)
    monkeypatch.setattr(execution, "kernel_time", lambda *_: lambda calls: 3e-6 * calls)
    monkeypatch.setattr(execution, "error_bound", lambda *_: None)
    monkeypatch.setattr(execution, "wait_until_asleep", lambda: True)
    return made


def rows(path: str = "results.csv") -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_a_command_is_launched_and_described(launches, capsys):
    assert main(CONV.split()) == 0

    assert capsys.readouterr().out.splitlines() == [CONV, TENSOR]
    (launchable,) = launches.values()
    assert len(launchable.seen) == 1


def test_timed_launches_are_printed_as_in_the_documents(launches, capsys):
    assert main([*CONV.split(), "-t", "1", "--iter", "8"]) == 0

    command, tensor, times, percentiles, kernel, *_ = capsys.readouterr().out.splitlines()
    assert (command, tensor) == (f"{CONV} --iter 8", TENSOR)
    assert times.startswith(">>> min=") and times.count("us") == 4 and " stddev=" in times
    assert percentiles.startswith(">>> median=") and percentiles.endswith("(8 launches)")
    assert kernel == ">>> kernel: min=3.00us max=3.00us mean=3.00us stddev=0.00us"


def test_reference_backends_are_measured_beside_it(launches, capsys):
    arguments = ["--csv=results.csv", "--reference-backend", "torch", "--reference-backend=iree_boo_legacy"]

    assert main([*arguments, "-t", "1", "--iter", "6", *CONV.split()]) == 0

    out = capsys.readouterr().out
    assert ">>> torch: min=" in out and ">>> iree_boo_legacy: median=" in out
    (row,) = rows()
    for backend in ("iree_boo", "torch", "iree_boo_legacy"):
        assert float(row[f"{backend} min"]) <= float(row[f"{backend} median"]) <= float(row[f"{backend} max"])
        assert row[f"{backend} num_dispatches"] == "6"
    assert row["iree_boo kernel median"] == "3.000"
    (launchable,) = launches.values()
    assert len({id(argument) for arguments in launchable.seen for argument in arguments}) == 2


def test_a_warning_names_the_backend(launches, capsys, monkeypatch):
    def measured(sides, *_):
        return [replace(TIMES, warnings=(f"drifted {number}",)) for number, _ in enumerate(sides)]

    monkeypatch.setattr(execution, "measure_in_turn", measured)

    assert main(["--reference-backend=torch", "-t", "1", *CONV.split()]) == 0

    assert capsys.readouterr().err == "iree_boo: drifted 0\ntorch: drifted 1\n"


def test_a_file_of_commands_goes_on_after_bad_lines(launches, capsys):
    bad = "conv -n x"
    Path("commands.txt").write_text(
        f"# four\n{CONV}\n\n{bad}\n{CONV} --failing 1\n{CONV} -t maybe\n{CONV} -F 2\n"
    )

    assert main(["--commands-file", "commands.txt", "--csv", "results.csv"]) == 1

    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if line.startswith("conv")] == [
        CONV, f"{CONV} --failing 1", f"{CONV} -F 2",
    ]  # fmt: skip
    assert "line 4: conv -n x: --batchsize: expected a whole number" in printed.err
    assert f"line 5: {CONV} --failing 1: out of luck" in printed.err
    assert "line 6: " in printed.err and "-t: expected" in printed.err
    assert [bool(row["error"]) for row in rows()] == [False, True, True, True, False]
    assert [row["min_time (us)"] for row in rows()] == ["untimed", "N.A.", "N.A.", "N.A.", "untimed"]


def test_a_command_of_several_directions_is_several_rows(launches, capsys):
    assert main(["--csv=results.csv", *CONV.split(), "-F", "0"]) == 0

    assert [row["arguments"] for row in rows()] == [f"{CONV} -F 0 ({number})" for number in range(3)]
    assert len(launches) == 3


def test_numerics_are_verified_on_request(launches, capsys):
    Path("commands.txt").write_text(f"{CONV}\n{CONV} --wrong 1 -k 4\n")

    assert main(["--commands-file=commands.txt", "--csv=results.csv", "--verify-numerics"]) == 1

    out = capsys.readouterr().out
    assert ">>> numerics: neither deviates" in out
    assert ">>> numerics: iree: result: " in out
    assert [row["numerics"] for row in rows()] == ["neither", "iree"]
    assert [bool(row["error"]) for row in rows()] == [False, True]


def test_every_argument_can_be_one_value(launches):
    assert main(["--splat-input-value=0.5", *CONV.split()]) == 0

    (launchable,) = launches.values()
    assert {float(each) for tensor in launchable.seen[0] for each in tensor.unique()} == {0.5}


def test_a_splat_value_that_the_type_does_not_have_is_an_error(capsys):
    """Of that command only: f32 has 1e30, and f16 does not."""
    Path("commands.txt").write_text(f"{CONV}\n{CONV.replace('conv', 'convfp16')}\n")

    assert main(["--commands-file=commands.txt", "--splat-input-value=1e30"]) == 1

    printed = capsys.readouterr()
    assert printed.out.count(">>> tensor") == 1
    assert (
        "line 2: " in printed.err
        and "cannot fill arguments with 1e+30, which is too large for f16" in printed.err
    )


def test_a_backend_that_fails_does_not_affect_the_others(launches, capsys, monkeypatch):
    import torch

    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(torch, "compile", fails)
    arguments = ["--reference-backend=inductor,torch", "--csv=results.csv", "-t", "1", "--iter=6"]

    assert main([*arguments, *CONV.split()]) == 1

    assert ">>> inductor: torch: no compiler at all" in capsys.readouterr().out
    (row,) = rows()
    assert row["inductor min"] == "N.A." and float(row["torch min"]) > 0
    assert row["error"] == "inductor: torch: no compiler at all"


def test_without_torch_arguments_are_arrays(launches, capsys, monkeypatch):
    class Launchable:
        driver = "local-sync"

        def __call__(self, images, filters):
            return images[:, :1]

    monkeypatch.setattr(execution, "has_torch", lambda: False)
    monkeypatch.setattr("dispatch_profiler.boo.driver.torch_functions.has_torch", lambda: False)
    monkeypatch.setattr(execution, "get_launchable", lambda _: Launchable())
    monkeypatch.setitem(sys.modules, "torch", None)

    assert main([*CONV.split(), "-t", "1", "--iter", "6"]) == 0
    assert ">>> array([...], size=(1, 1, 5, 4), dtype=float32)" in capsys.readouterr().out

    assert main(["--reference-backend=torch", *CONV.split()]) == 2
    assert "torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expected a command, or --commands-file=FILE"),
        (
            ["--commands-file=a.txt", "conv", "-n", "1"],
            "the command 'conv' and --commands-file exclude each other",
        ),
        (["--commands-file=missing.txt"], "cannot read missing.txt"),
        (["--device=tpu", "conv"], "--device: 'tpu' is not supported"),
        (["--device=cpu", "--gpu-id=1", "conv"], "--gpu-id=1 contradicts --device=cpu"),
        (["--device=cuda:2", "--gpu-id=1", "conv"], "--gpu-id=1 contradicts --device=cuda:2"),
        (["--gpu-id=-1", "conv"], "expected a whole number such as 0"),
        (["--iter=0", "conv"], "expected a whole number of at least 1"),
        (["--splat-input-value=nan", "conv"], "expected a number"),
        (["--csv=no/such/folder.csv", "conv"], "there is no folder"),
        (["--nonsense", "conv"], "unrecognized arguments: --nonsense"),
    ],
)
def test_an_invalid_request_runs_nothing(arguments, reason, launches, capsys):
    assert main(arguments) == 2

    assert reason in capsys.readouterr().err
    assert not launches


def test_a_gpu_that_torch_cannot_use_is_named(launches, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert main(["--gpu-id=0", *CONV.split()]) == 2

    assert "cuda:0 is not available" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("conv -n 1 --csv=a.csv -t 1", "--csv=a.csv conv -n 1 -t 1"),
        ("conv -n 1 --csv a.csv --iter 9 -q 0", "--csv a.csv conv -n 1 --iter 9 -q 0"),
        ("conv --verify-numerics -n 1", "--verify-numerics conv -n 1"),
        ("-t 1 --commands-file f.txt", "--commands-file f.txt -t 1"),
        ("conv --csv", "--csv conv"),
    ],
)
def test_options_may_follow_the_command(arguments: str, expected: str):
    assert in_front(make_parser(), arguments.split()) == expected.split()


def test_what_torch_does_not_compute_is_no_failure(launches, capsys, monkeypatch):
    def rejects(*_: object) -> object:
        raise NotSupported("torch sums otherwise")

    monkeypatch.setattr("dispatch_profiler.boo.driver.runs.outcomes.torch_function", rejects)

    assert main(["--reference-backend=torch", "-t", "1", "--iter=6", *CONV.split()]) == 0

    assert ">>> torch: torch sums otherwise" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_is_a_reference(launches, capsys):
    assert main(["--reference-backend=inductor", "-t", "1", "--iter=6", *CONV.split()]) == 0

    assert ">>> inductor: min=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory"), "torch: CUDA out of memory"),
        (MemoryError("Unable to allocate"), "out of memory: Unable to allocate"),
    ],
)
def test_an_error_of_torch_ends_only_its_command(error, reason, launches, capsys, monkeypatch):
    def fails(*_: object) -> None:
        raise error

    Path("commands.txt").write_text(f"{CONV} -t 1\n{CONV}\n")
    monkeypatch.setattr(execution, "measure_in_turn", fails)

    assert main(["--commands-file=commands.txt"]) == 1

    printed = capsys.readouterr()
    assert f"line 1: {CONV}: {reason}" in printed.err
    assert printed.out.count(TENSOR) == 2


@pytest.mark.parametrize("command", ["boo --commands-file", "numerics"])
def test_a_command_that_does_not_fit_into_memory_ends_only_itself(command: str, launches, capsys):
    large = "conv -n 999999999 -c 999999999 -H 999999 -W 999999 -k 999999999"
    Path("commands.txt").write_text(f"{large}\nconv -n 100000000 -c 1000 -H 100 -W 100 -k 1\n{CONV}\n")

    assert program([*command.split(), "commands.txt"]) == 1

    printed = capsys.readouterr()
    assert f"line 1: {large}: the tensors need " in printed.err
    assert printed.err.count("GiB of memory, but ") == 2
    assert printed.out.splitlines()[2] == CONV


@pytest.mark.parametrize(
    ("line", "tensor"),
    [
        ("gemm -m 10000000 -n 10000000 -k 1", "result, of 10000000 x 10000000"),
        ("conv -n 100000000 -c 1000 -H 100 -W 100 -k 1", "lhs, of 100000000 x 1000 x 100 x 100"),
    ],
)
def test_the_hint_for_too_much_memory_names_the_largest_tensor(line: str, tensor: str, launches, capsys):
    """In words that fit every command: -n of gemm is no batch."""
    assert program(["boo", *line.split()]) == 1
    assert f"use smaller sizes: the largest tensor is {tensor}" in capsys.readouterr().err


def test_a_command_has_no_quotations(launches, capsys):
    """As in `numerics` and `preload`, which read the same files."""
    Path("commands.txt").write_text('conv -n "1\n')

    assert main(["--commands-file=commands.txt"]) == 1

    assert "--batchsize: expected a whole number, but got '\"1'" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["dispatch_profiler.boo.driver", "dispatch_profiler.boo.driver.numerics"])
def test_the_modules_of_the_documents_are_commands(module: str):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith(f"usage: python -m {module} ")


def test_it_is_a_command_of_the_program(launches):
    assert program(["boo", *CONV.split()]) == 0


def test_the_runtime_of_tracy_is_for_traced_processes_only(launches, monkeypatch):
    traced = []
    monkeypatch.setenv("IREE_PY_RUNTIME", "tracy")
    monkeypatch.setattr(driver, "trace", lambda *arguments: traced.append(arguments) or ["trace: a"])

    assert main([*CONV.split(), "-t", "1", "--iter=6"]) == 0

    assert "IREE_PY_RUNTIME" not in os.environ
    (path,) = (each[-1] for each in traced)
    assert path.parent == Path("tracy") and path.name.endswith("_g1.tracy")


def test_importing_the_command_loads_neither_torch_nor_the_runtime():
    """The runtime is chosen by an environment variable when it is loaded, and completion imports every command."""
    code = "import sys, dispatch_profiler.boo.driver.driver; print([n for n in ('torch', 'iree.runtime') if n in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_iree_boo_inductor_is_a_reference(launches, capsys):
    assert main(["--reference-backend=iree_boo_inductor", "-t", "1", "--iter=6", *CONV.split()]) == 0

    assert ">>> iree_boo_inductor: min=" in capsys.readouterr().out
