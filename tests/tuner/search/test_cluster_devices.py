"""A search whose candidates are compiled by some workers of a cluster and measured by others."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
import test_search
from cluster_helpers import LocalCluster
from test_search import OPTIONS, find, outcomes, task  # noqa: F401
from worker_helpers import use_in_process_workers

from dispatch_profiler.compiler.workers.cluster import Cluster, is_device
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.evaluation import hosted as hosted_module
from dispatch_profiler.profiler.evaluation.candidate import DamagedVmfb, EvaluatorOptions, Vmfb
from dispatch_profiler.profiler.evaluation.hosted import Host, Hosted
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.evaluation import cluster_devices
from dispatch_profiler.tuner.evaluation.cluster_devices import ClusterDevices, HostedDevice, check_alike
from dispatch_profiler.tuner.search.events import DeviceLost, Evaluated, Event
from dispatch_profiler.tuner.search.search import search
from dispatch_profiler.tuner.storage.storage import open_storage

ROOT = Path(__file__).parents[3]
#: Imported by a worker when it starts: it has no compiler.
NO_COMPILER = "import sys; sys.modules['iree.compiler'] = None; sys.modules['joblib'] = None\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A scheduler, a worker that compiles, and one with a device and without a compiler."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "sitecustomize.py").write_text(NO_COMPILER)
    made = LocalCluster(folder / "processes", str(ROOT))
    try:
        made.start_scheduler()
        made.start_worker()
        start_device(made, "null://0", "--name=first")
        made.wait_for_workers(2)
        yield made
    finally:
        made.stop()


def start_device(cluster: LocalCluster, device: str, *options: str):
    paths = os.pathsep.join([str(cluster.folder.parent), cluster.paths])
    return cluster.start_worker(f"--resources={device}=1", *options, PYTHONPATH=paths)


@pytest.fixture
def on_cluster(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of this test use the cluster."""
    # For the process that is asked for flags here.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(test_search, "OPTIONS", replace(OPTIONS, cluster=Cluster(cluster.address)))


def tasks():
    return [task(Matmul(16, 32, k), count=10, evaluations=7) for k in (8, 16)]


@pytest.mark.usefixtures("on_cluster")
def test_a_lost_worker_costs_only_its_candidates_in_flight(cluster, find, monkeypatch):  # noqa: F811
    """Its operations continue on another device; what it measured before stays. All is as on this machine."""
    lost = start_device(cluster, "null://1", "--name=second")
    with monkeypatch.context() as patched:
        use_in_process_workers(patched)
        patched.setattr(test_search, "OPTIONS", OPTIONS)
        alone = find(*tasks(), storage="local.log")
    cluster.wait_for_workers(3)
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, Evaluated) and _device(event).endswith("second") and lost.poll() is None:
            cluster.kill(lost)

    with open_storage("search.log") as storage:
        options = replace(test_search.OPTIONS, overlap=True)
        result = search(tasks(), NullTarget("faults.yaml"), storage, options, listen)

    assert outcomes(result) == outcomes(alone)
    (failure,) = [each for each in events if isinstance(each, DeviceLost)]
    assert failure.device == "null://1@second" and "the worker on" in failure.reason
    evaluated = [each.evaluation.dispatch.name for each in events if isinstance(each, Evaluated)]
    assert len(evaluated) == len(set(evaluated))
    records = [each.record for found in result.operations for each in found.evaluations]
    assert {record.provenance.device for record in records} == {"null://0@first", "null://1@second"}
    assert all(record.provenance.machine.cores and record.provenance.machine.cpu for record in records)
    assert all(record.measurement is not None and record.measurement.samples_ms for record in records)


def _device(event: Evaluated) -> str:
    return event.evaluation.record.provenance.device


@pytest.mark.slow
def test_a_worker_that_starts_later_is_found_once(cluster):
    """Under a name that is in use only when the worker that had it is gone."""
    with ClusterDevices(Cluster(cluster.address)) as opened:
        first = opened.devices("null")["null://0@first"]
        assert opened.new_devices(first, (), ()) == []
        late = start_device(cluster, "null://2", "--name=late")
        cluster.wait_for_workers(3)
        assert opened.new_devices(first, (), ["null://2@late"]) == []
        assert [each.name for each in opened.new_devices(first, (), ())] == ["null://2@late"]
        assert opened.new_devices(first, (), ()) == []
    cluster.kill(late)
    cluster.wait_for_workers(2)


@pytest.mark.usefixtures("on_cluster")
def test_a_worker_with_another_runtime_is_refused(find, monkeypatch):  # noqa: F811
    monkeypatch.setattr(cluster_devices, "runtime_version", lambda: "2.0")
    with pytest.raises(
        UsageError, match=r"the worker first on .* this machine has .* with IREE's runtime 2\.0"
    ):
        find(task())


@pytest.mark.usefixtures("on_cluster")
def test_a_device_that_no_worker_has_is_an_error(find, monkeypatch):  # noqa: F811
    options = replace(test_search.OPTIONS, devices=("null://7@first",))
    monkeypatch.setattr(test_search, "OPTIONS", options)
    with pytest.raises(UsageError, match=r"measures on null://7@first; available: null://0@first"):
        find(task())


def test_a_device_of_another_machine_needs_a_cluster(find, monkeypatch):  # noqa: F811
    monkeypatch.setattr(test_search, "OPTIONS", replace(OPTIONS, devices=("null://0@node7",)))
    with pytest.raises(UsageError, match="null://0@node7 is on another machine"):
        find(task())


def hosted(name: str, gpu: str = "H100", hardware: str = "") -> HostedDevice:
    host = Host(name, "0.1", "3.13", Machine(gpu=gpu), hardware or name)
    return HostedDevice(f"cuda://0@{name}", "cuda://0", "tcp://127.0.0.1:1", host)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """Devices whose processes were ended; evaluators are invented."""
    seen: SimpleQueue[str] = SimpleQueue()

    class Evaluator:
        def __init__(self, options: EvaluatorOptions) -> None:
            self.kill = self.close = lambda: seen.put(options.device)

    monkeypatch.setattr(hosted_module, "Evaluator", Evaluator)
    return seen


def test_a_worker_ends_what_a_killed_search_left_behind(ended):
    with Hosted(idle_seconds=0.0).use("search", EvaluatorOptions("cuda://1@node7")):
        assert ended.empty()
    assert ended.get(timeout=60.0) == "cuda://1"


def test_a_device_belongs_to_the_search_that_used_it_last(ended):
    evaluators, options = Hosted(), EvaluatorOptions("cuda://1@node7")
    with evaluators.use("first", options) as one, evaluators.use("first", options) as same:
        assert one is same
    with evaluators.use("second", options) as other:
        assert other is not one and ended.get_nowait() == "cuda://1"
    evaluators.stop("first", options.device)
    assert ended.empty()
    evaluators.stop("second", options.device)
    assert ended.get_nowait() == "cuda://1"


def test_unlike_devices_and_the_same_device_twice_are_errors():
    check_alike([hosted("a"), hosted("b")])
    with pytest.raises(UsageError, match="cuda://0@a is H100, cuda://0@b is A100"):
        check_alike([hosted("a"), hosted("b", "A100")])
    with pytest.raises(UsageError, match="cuda://0@a and cuda://0@b are the same hardware"):
        check_alike([hosted("a", hardware="GPU-1"), hosted("b", hardware="GPU-1")])


def test_resources_that_are_devices_have_their_uri():
    assert all(map(is_device, ("cuda", "cuda://1", "hip://0", "local-task", "null://0")))
    assert not any(map(is_device, ("GPU", "memory", "cuda1")))


def test_a_vmfb_travels_with_its_content():
    vmfb = Vmfb.of(b"code")
    sent = pickle.dumps(vmfb)
    arrived = pickle.loads(sent)
    assert arrived == vmfb and arrived.load() == b"code"
    with pytest.raises(DamagedVmfb):
        pickle.loads(sent.replace(b"code", b"c0de"))
