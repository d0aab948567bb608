"""A Dask cluster of real processes: the same vmfbs as here, also when a worker is killed half-way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import PATIENCE, LocalCluster
from pool_helpers import KillsItsParent

from dispatch_profiler.compiler import BuildRequest, CompileOptions, IreeCompiler, NullCompiler, compile_tree
from dispatch_profiler.compiler.workers.cluster import Cluster, connect, is_exposed
from dispatch_profiler.compiler.workers.pool import BuildPool, Executor
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Matmul

ROOT = Path(__file__).parent.parent.parent


PATHS = os.pathsep.join(
    filter(None, [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setenv("PYTHONPATH", PATHS)  # for the process that is asked for flags here
    made = LocalCluster(tmp_path / "cluster", PATHS)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One that this machine alone reaches, for tests that change nothing but its workers: starting one takes a second."""
    made = LocalCluster(tmp_path_factory.mktemp("cluster"), PATHS)
    try:
        made.start_scheduler()
        yield made
    finally:
        made.stop()


@pytest.fixture
def without_workers(scheduler: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """`scheduler`, whose workers end with the test that starts them."""
    monkeypatch.setenv("PYTHONPATH", PATHS)  # for the process that is asked for flags here
    yield scheduler
    for worker in scheduler.processes[1:]:
        scheduler.kill(worker)
    scheduler.wait_for_workers(0)


@pytest.fixture
def two_workers(cluster: LocalCluster) -> LocalCluster:
    cluster.start_scheduler()
    cluster.start_worker()
    cluster.start_worker()
    cluster.wait_for_workers(2)
    return cluster


def vmfbs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.vmfb")}


def unexpected(warning: str) -> None:
    """For clusters that other machines do not reach."""
    raise AssertionError(warning)


TLS_OPTIONS = ("--tls-ca-file=cert.pem", "--tls-cert=cert.pem", "--tls-key=key.pem")
SWEEP = (
    "--problem-m=16:64:16",
    "--problem-n=32",
    "--problem-k=16",
    "--lhs=f32",
    "--default-config=only",
)


@pytest.mark.slow
def test_two_workers_give_the_vmfbs_of_this_machine(two_workers: LocalCluster, run, tmp_path: Path):
    two = ("--problem-m=16,32", *SWEEP[1:])
    for place in ("here", "there"):
        assert run("generator", f"--generated-dir={tmp_path / place}", *two).status == 0
    here = run("compile", f"--generated-dir={tmp_path / 'here'}", "--no-cache")
    there = run(
        "compile",
        f"--generated-dir={tmp_path / 'there'}",
        "--no-cache",
        "--executor=dask",
        f"--scheduler={two_workers.address}",
    )

    assert (here.status, there.status) == (0, 0), there.err
    assert vmfbs(tmp_path / "there") == vmfbs(tmp_path / "here")
    assert len(vmfbs(tmp_path / "there")) == 4
    assert not list((tmp_path / "cluster").rglob("*.mlir"))  # the workers saw no tree


@pytest.mark.slow
def test_what_a_killed_worker_had_in_hand_is_done_by_the_other(
    two_workers: LocalCluster, run, tmp_path: Path
):
    run("generator", f"--generated-dir={tmp_path}", *SWEEP)
    options = CompileOptions(executor="dask", workers=2, cluster=Cluster(two_workers.address))

    states = []
    for done in compile_tree(load_manifest(Tree(tmp_path)), IreeCompiler(), options):
        if not states:
            two_workers.processes[1].send_signal(signal.SIGKILL)  # it has other modules in hand
        states.extend(entry.state.value for entry in done.entries)

    assert set(states) == {"compiled"}
    assert len(states) == len(list(load_manifest(Tree(tmp_path)).dispatches()))


JOBS = {
    i: BuildRequest("die" if i == 1 else str(i), (Dispatch(Matmul(8, 8, 8), Default()),), (), 1)
    for i in range(4)
}


def test_a_module_that_its_workers_die_of_is_given_up_and_the_others_are_done(
    cluster: LocalCluster, tmp_path: Path
):
    """The scheduler gives a task up when a first worker has died of it; another worker is left."""
    cluster.start_scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
    cluster.start_worker()
    cluster.start_worker()
    cluster.wait_for_workers(2)
    compiler = KillsItsParent(counter=str(tmp_path / "killed"), times=1)

    with BuildPool[int](
        compiler, Executor("dask", 2, Cluster(cluster.address)), WorkerLimits(seconds=PATIENCE)
    ) as pool:
        results = dict(pool.results(JOBS))

    (outcome,) = results[1].outcomes.values()
    assert "workers died on it repeatedly" in outcome.reason
    assert outcome.is_transient
    assert set(results) == {0, 1, 2, 3}


def test_a_cluster_without_workers_is_told(without_workers: LocalCluster):
    cluster = without_workers
    with (
        pytest.raises(ToolError, match="has no workers") as caught,
        connect(Cluster(cluster.address), NullCompiler(), unexpected),
    ):
        pass

    assert f"dask worker {cluster.address}" in caught.value.hint


def test_a_worker_with_another_compiler_is_refused(without_workers: LocalCluster, monkeypatch):
    """Results are kept under our compiler's revision: another's must not get there."""
    cluster = without_workers
    cluster.start_worker()
    cluster.wait_for_workers(1)
    monkeypatch.setattr("dispatch_profiler.compiler.workers.cluster.__version__", "99")

    with (
        pytest.raises(ToolError, match=r"has dispatch_profiler .* this machine has 99") as caught,
        connect(Cluster(cluster.address), NullCompiler(), unexpected),
    ):
        pass

    assert "same versions" in caught.value.hint


def test_a_worker_without_this_package_is_refused_by_name(without_workers: LocalCluster, tmp_path: Path):
    cluster = without_workers
    broken = tmp_path / "broken" / "dispatch_profiler"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ModuleNotFoundError('no dispatch_profiler here')")
    cluster.start_worker(PYTHONPATH=str(broken.parent))
    cluster.wait_for_workers(1)

    with (
        pytest.raises(ToolError, match="cannot compile: no dispatch_profiler here") as caught,
        connect(Cluster(cluster.address), NullCompiler(), unexpected),
    ):
        pass

    assert caught.value.hint == "install the same dispatch_profiler there (docs/cluster.md)"


def test_a_scheduler_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr("dispatch_profiler.compiler.workers.cluster._ANSWER_SECONDS", 1)

    with (
        pytest.raises(UsageError, match=r"no scheduler answers at tcp://127\.0\.0\.1:1"),
        connect(Cluster("tcp://127.0.0.1:1"), NullCompiler(), unexpected),
    ):
        pass


def test_without_distributed_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)

    with (
        pytest.raises(MissingDependency, match="needs the package distributed") as caught,
        connect(Cluster("tcp://127.0.0.1:1"), NullCompiler(), unexpected),
    ):
        pass

    assert caught.value.hint == "run: python -m pip install 'distributed>=2024.8'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor=dask"], "--executor=dask needs --scheduler"),
        (["--scheduler=tcp://a:1"], "--scheduler needs --executor=dask"),
        (["--tls-key=key.pem"], "--tls-ca-file is required too"),
        ([*TLS_OPTIONS], "--tls-ca-file needs --executor=dask"),
        ([*TLS_OPTIONS[:2], "--tls-key=nowhere.pem"], "--tls-key is not a file: nowhere.pem"),
        (["--executor=dask", "--scheduler=tcp://a:1", *TLS_OPTIONS], "tls:// addresses and --tls options"),
        (["--executor=dask", "--scheduler=tls://a:1"], "tls:// addresses and --tls options"),
        (["--executor=dask", "--scheduler=ucx://a:1"], "malformed scheduler address 'ucx://a:1'"),
        (["--executor=dask", "--scheduler=nonsense"], "malformed scheduler address 'nonsense'"),
        (["--executor=dask", "--scheduler=tcp://a:1", "-j2"], "--jobs does not limit a cluster"),
        (["--executor=ray"], "invalid choice: 'ray'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, arguments, message):
    run("generator", "--target=null", *SWEEP)
    for name in ("cert.pem", "key.pem"):
        Path(name).touch()

    assert message in run("compile", *arguments).checked(2).err


# -- who else can use it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "exposed"),
    [
        ("tcp://127.0.0.1:8786", False),
        ("tcp://127.8.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tcp://localhost:8786", False),
        ("inproc://192.168.0.2/7/1", False),
        ("tls://0.0.0.0:8786", False),
        ("tcp://0.0.0.0:8786", True),
        ("tcp://[::]:8786", True),
        ("tcp://192.168.0.2:8786", True),
        ("tcp://head:8786", True),
    ],
)
def test_what_other_machines_reach_without_tls_is_exposed(address: str, exposed: bool):
    assert is_exposed(address) is exposed


def test_a_cluster_that_other_machines_reach_is_told(cluster: LocalCluster):
    """Dask listens on every interface unless told."""
    cluster.start_scheduler(host="")
    cluster.start_worker()
    check_a_warning(cluster)


def test_a_worker_that_other_machines_reach_is_told(without_workers: LocalCluster):
    """It listens on every interface also when its scheduler does not."""
    without_workers.start_worker(host="")
    check_a_warning(without_workers)


def check_a_warning(cluster: LocalCluster) -> None:
    cluster.wait_for_workers(1)
    told: list[str] = []

    with connect(Cluster(cluster.address), NullCompiler(), told.append):
        pass

    (warning,) = told
    assert re.match(
        r"warning: any process that reaches tcp://(0\.0\.0\.0|\[::\]):\d+ can run programs", warning
    )
    assert "--host 127.0.0.1" in warning


def certificate(name: str) -> tuple[str, ...]:
    """Options with a certificate that vouches for itself, made by the command of docs/cluster.md."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    (command,) = re.findall(r"^\$ (openssl .*)$", page, flags=re.M)
    subprocess.run(
        ["sh", "-c", command.replace("key.pem", f"{name}_key.pem").replace("cert.pem", f"{name}.pem")],
        check=True,
        capture_output=True,
    )
    here = Path.cwd()
    return (
        f"--tls-ca-file={here / name}.pem", f"--tls-cert={here / name}.pem", f"--tls-key={here / name}_key.pem"
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_with_tls_only_who_has_the_key_can_use_a_cluster(cluster: LocalCluster, run, monkeypatch):
    """It listens on every interface, and there is nothing to warn of."""
    ours, others = certificate("ours"), certificate("others")
    cluster.start_scheduler("--protocol=tls", *ours, host="")
    cluster.start_worker("--protocol=tls", *ours, host="")
    run("generator", "--target=null", *SWEEP)
    with_cluster = ("compile", "--executor=dask", f"--scheduler={cluster.address}")

    outcome = run(*with_cluster, *ours)
    while "has no workers" in outcome.err:
        outcome = run(*with_cluster, *ours)
    monkeypatch.setattr("dispatch_profiler.compiler.workers.cluster._ANSWER_SECONDS", 1)
    foreign = run(*with_cluster, "--force-compile", *others)
    plain = run(*with_cluster[:2], f"--scheduler={cluster.address.replace('tls', 'tcp')}", "--force-compile")

    assert outcome.status == 0, outcome.err
    assert "warning" not in outcome.err
    assert foreign.status == plain.status == 2
    assert "with a certificate signed by --tls-ca-file" in foreign.err
    assert "no scheduler answers" in plain.err


# -- what `host` means -----------------------------------------------------------------------------


@pytest.mark.slow
def test_host_is_resolved_before_it_travels(make_request):
    """Flags without `host` give the same bytes: no other machine's CPU gets into them."""
    compiler = IreeCompiler()
    request = make_request(Matmul(16, 16, 16), [Default()])
    resolved = compiler.resolve(request.flags)

    assert not any(flag.endswith("=host") for flag in resolved)
    other = compiler.build(BuildRequest(request.source, request.dispatches, resolved, request.repeat))
    assert other == compiler.build(request)


def test_a_named_cpu_stays_as_it_is():
    flags = ("--iree-llvmcpu-target-cpu=znver4",)

    assert IreeCompiler().resolve(flags) == flags
