"""Whatever happens to a worker process costs only the call that it served."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import isolation_helpers as helpers
import pytest

from dispatch_profiler import isolation, startup
from dispatch_profiler.errors import (
    CompilerError,
    ConfigurationError,
    ToolError,
    WorkerCrashed,
    WorkerOutOfMemory,
    WorkerTimedOut,
)
from dispatch_profiler.isolation import Worker, WorkerLimits

HERE = Path(__file__).parent
MIB = 2**20


@pytest.fixture(autouse=True)
def importable_helpers(monkeypatch):
    """Workers find isolation_helpers, and this package, wherever they are started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent)]))


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def until(condition: Callable[[], object]) -> None:
    """Wait for what is bound to happen; give up after ten seconds."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def is_gone(process: int) -> bool:
    """Has it ended, whether or not its parent has fetched its exit status?"""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def when(note: Path, action: Callable[[], object]) -> threading.Thread:
    """Do `action` in another thread once the worker has written `note`."""

    def body() -> None:
        until(note.exists)
        action()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


# -- answers ---------------------------------------------------------------------------------------


def test_a_call_answers_with_the_value(worker):
    """Whatever can be pickled goes both ways."""
    assert worker.call(helpers.echo, {"a": (1, None, b"\x00")}) == {"a": (1, None, b"\x00")}


def test_calls_are_served_by_one_other_process(worker):
    """It is started once, and it is not ours."""
    assert worker.call(helpers.pid) == worker.call(helpers.pid) != os.getpid()


def test_our_errors_come_back_as_they_are(worker):
    """Type, message, hint and further fields; the process lives on."""
    before = worker.call(helpers.pid)
    with pytest.raises(CompilerError, match=r"^no$") as caught:
        worker.call(helpers.refuse, "no", "try yes")
    assert (caught.value.hint, caught.value.diagnostics) == ("try yes", "all that was said")
    assert worker.call(helpers.pid) == before


def test_other_errors_come_back_with_their_traceback(worker):
    """A ToolError says what it was and, as its hint, where; the process lives on."""
    before = worker.call(helpers.pid)
    with pytest.raises(ToolError, match=r"^ZeroDivisionError: division by zero$") as caught:
        worker.call(helpers.divide, 1, 0)
    assert caught.value.hint.startswith("Traceback")
    assert "in divide" in caught.value.hint
    assert worker.call(helpers.pid) == before


def test_noise_does_not_disturb(worker, capfd):
    """What is printed in the process is neither taken for an answer nor shown."""
    assert worker.call(helpers.make_noise) == "the answer"
    assert worker.call(helpers.echo, 2) == 2
    assert capfd.readouterr() == ("", "")
    assert "written to 2" in worker.stderr_tail(200_000)


def test_the_tail_is_the_end(worker):
    """At most as much as was asked for; nothing before the start and after the end."""
    assert worker.stderr_tail() == ""
    worker.call(helpers.make_noise)
    assert worker.stderr_tail(5) == "to 2\n"
    worker.close()
    assert worker.stderr_tail() == ""


def test_a_function_that_cannot_be_imported_is_an_error(worker):
    """A local function has no name that another process could find."""
    with pytest.raises(ToolError, match="AttributeError"):
        worker.call(lambda: 1)


def test_an_argument_that_cannot_be_pickled_costs_only_its_call(worker):
    """The next call is served."""
    with pytest.raises(Exception, match="pickle"):
        worker.call(helpers.echo, lambda: None)
    assert worker.call(helpers.echo, 2) == 2


def test_a_value_that_cannot_be_pickled_costs_only_its_call(worker):
    """The message says so, and the next call is served."""
    with pytest.raises(ToolError, match="pickle"):
        worker.call(helpers.not_picklable)
    assert worker.call(helpers.echo, 2) == 2


# -- deaths ----------------------------------------------------------------------------------------

DEATHS = {
    "segfault": ((helpers.die_of, signal.SIGSEGV), "^killed by SIGSEGV"),
    "abort": ((helpers.die_of, signal.SIGABRT), "^killed by SIGABRT"),
    "kill": ((helpers.die_of, signal.SIGKILL), "^killed by SIGKILL .the system may have run out of memory"),
    "a signal without a name": ((helpers.die_of, signal.SIGRTMIN + 5), r"^killed by signal \d+"),
    "_exit": ((helpers.leave, 3), "^the process ended with status 3$"),
    "_exit 0": ((helpers.leave, 0), "^the process ended with status 0$"),
    "exit": ((helpers.leave_politely, 4), "^the process ended with status 4$"),
    "last words": ((helpers.leave_with, "last words"), "^the process ended with status 1: last words$"),
}


@pytest.mark.parametrize(("call", "message"), DEATHS.values(), ids=DEATHS)
def test_a_death_is_told_and_the_next_call_works(worker, call, message):
    """WorkerCrashed says how, with the last line of standard error; a fresh process takes over."""
    before = worker.call(helpers.pid)
    with pytest.raises(WorkerCrashed, match=message):
        worker.call(*call)
    assert worker.call(helpers.pid) != before


def test_the_reason_of_an_abort_is_its_own_line_not_the_last_one(worker):
    """LLVM writes a stack dump and an empty line after it. What earlier calls wrote is not the reason."""
    with pytest.raises(WorkerCrashed) as caught:
        worker.call(helpers.abort_with, "LLVM ERROR: no such vector")
    assert caught.value.message == "killed by SIGABRT: LLVM ERROR: no such vector"
    assert caught.value.is_deterministic

    worker.call(helpers.say, "LLVM ERROR: of an earlier call")
    with pytest.raises(WorkerCrashed) as caught:
        worker.call(helpers.die_of, signal.SIGKILL)
    assert "LLVM" not in caught.value.message
    assert not caught.value.is_deterministic


@pytest.mark.parametrize(("call", "is_deterministic"), [(helpers.hang, True), (helpers.stop, False)])
def test_a_hang_is_its_own_doing_unless_the_process_was_stopped(worker, call, is_deterministic):
    with pytest.raises(WorkerTimedOut) as caught:
        worker.call(call, seconds=0.7)
    assert (caught.value.seconds, caught.value.is_deterministic) == (0.7, is_deterministic)


def test_without_processes_files_or_threads_no_worker_starts(monkeypatch):
    """One sentence says what lacked, and the next call may succeed."""
    with Worker() as worker:
        for error in (
            BlockingIOError(11, "Resource temporarily unavailable"),
            RuntimeError("can't start new thread"),
        ):
            with (
                monkeypatch.context() as patch,
                pytest.raises(WorkerCrashed, match="cannot start a process") as caught,
            ):
                patch.setattr(
                    isolation.subprocess, "Popen", lambda *_, error=error, **__: (_ for _ in ()).throw(error)
                )
                worker.call(helpers.pid)
            assert not caught.value.is_deterministic
        assert worker.call(helpers.echo, 1) == 1


def test_a_limit_of_open_files_costs_the_call(tmp_path):
    """A real one, in a process of its own."""
    script = (
        "import os, resource\nfrom dispatch_profiler.errors import WorkerCrashed\n"
        "from dispatch_profiler.isolation import Worker\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')), 4096))\n"
        "try: Worker().call(os.getpid)\nexcept WorkerCrashed as error: print(error, error.is_deterministic)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "cannot start a process: Too many open files False\n"


def test_a_death_between_two_calls_is_told(worker):
    """The call that finds it dead says so, the one after is served."""
    process = worker.call(helpers.pid)
    os.kill(process, signal.SIGKILL)
    until(lambda: is_gone(process))
    with pytest.raises(WorkerCrashed, match="SIGKILL"):
        worker.call(helpers.echo, 1)
    assert worker.call(helpers.echo, 2) == 2


@pytest.mark.parametrize("inherited", [False, True], ids=["closed", "inherited"])
def test_a_child_that_is_left_does_not_keep_the_call_waiting(worker, tmp_path, inherited):
    """Even if it holds the socket, the death of the worker is seen at once."""
    with pytest.raises(WorkerCrashed, match="status 3"):
        worker.call(helpers.leave_a_child, str(tmp_path / "child"), inherited, seconds=5)


def test_a_child_that_is_left_is_ended(worker, tmp_path):
    """What a dead worker started does not run on beside its successor."""
    with pytest.raises(WorkerCrashed, match="status 3"):
        worker.call(helpers.leave_a_child, str(tmp_path / "child"), False)
    child = int((tmp_path / "child").read_text())
    try:
        until(lambda: is_gone(child))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


# -- limits ----------------------------------------------------------------------------------------


def test_a_hang_is_ended_at_the_limit():
    """The process goes, and the next call is served by another."""
    with Worker(WorkerLimits(seconds=0.2)) as worker:
        before = worker.call(helpers.pid, seconds=100)
        with pytest.raises(WorkerTimedOut, match=r"^no answer within 0\.2 s$"):
            worker.call(helpers.hang)
        assert is_gone(before)
        assert worker.call(helpers.echo, 2, seconds=100) == 2


def test_the_limit_of_one_call_comes_first():
    """`seconds` of a call replaces that of the worker."""
    with (
        Worker(WorkerLimits(seconds=1000)) as worker,
        pytest.raises(WorkerTimedOut, match=r"within 0\.05 s"),
    ):
        worker.call(helpers.hang, seconds=0.05)


@pytest.fixture
def orderly_ends(monkeypatch) -> list[float]:
    """Grows by one for each process that is given time to leave by itself."""
    seen: list[float] = []
    wait = subprocess.Popen.wait

    def spy(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        seen.extend([timeout] if timeout == WorkerLimits.leave_seconds else [])
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", spy)
    return seen


def test_an_orderly_end_is_seen(orderly_ends):
    """The spy above sees an idle process leave."""
    with Worker() as worker:
        worker.call(helpers.pid)
    assert orderly_ends == [WorkerLimits.leave_seconds]


def test_a_start_that_hangs_is_ended_at_the_limit(orderly_ends):
    """A device that does not open is a hang like any other; a start has a limit of its own."""
    with (
        Worker(WorkerLimits(seconds=1000, start_seconds=0.5), helpers.hang) as worker,
        pytest.raises(WorkerTimedOut, match=r"did not start within 0\.5 s"),
    ):
        worker.call(helpers.pid)
    assert orderly_ends == []


def test_memory_beyond_the_limit_is_refused():
    """WorkerOutOfMemory, and the next call is served; what fits is served as ever."""
    with Worker(WorkerLimits(memory_bytes=256 * MIB)) as worker:
        before = worker.call(helpers.pid)
        assert worker.call(helpers.size_of_allocation, 64 * MIB) == 64 * MIB
        with pytest.raises(WorkerOutOfMemory, match=r"^out of memory"):
            worker.call(helpers.size_of_allocation, 400 * MIB)
        assert worker.call(helpers.pid) != before


def test_memory_without_a_limit_is_given():
    """The same call, so that it is the limit that refused it."""
    with Worker() as worker:
        assert worker.call(helpers.size_of_allocation, 400 * MIB) == 400 * MIB


@pytest.mark.parametrize(
    "call", [(helpers.many_bytes, 100 * MIB), (helpers.echo, bytes(100 * MIB))], ids=["answer", "argument"]
)
def test_an_answer_or_argument_beyond_the_limit_is_out_of_memory(call):
    """Memory that runs out while they are pickled is memory that runs out."""
    # An argument arrives in hundreds of pieces, each in a buffer for all that is left, which glibc would fill.
    unfilled = {"MALLOC_PERTURB_": "0"}
    with Worker(WorkerLimits(memory_bytes=150 * MIB), environment=unfilled) as worker:
        with pytest.raises(WorkerOutOfMemory, match="out of memory"):
            worker.call(*call)
        assert worker.call(helpers.echo, 2) == 2


# -- ended by us -----------------------------------------------------------------------------------


def test_kill_from_another_thread_ends_the_call(worker, tmp_path):
    """The call that waits raises WorkerCrashed; the next one is served."""
    thread = when(tmp_path / "note", worker.kill)
    with pytest.raises(WorkerCrashed, match="SIGKILL"):
        worker.call(helpers.hang, str(tmp_path / "note"))
    thread.join()
    assert worker.call(helpers.echo, 2) == 2


def test_kill_without_a_process_does_nothing(worker):
    """Before the start and after the end."""
    worker.kill()
    worker.close()
    worker.kill()
    assert worker.call(helpers.echo, 2) == 2


def test_ctrl_c_does_not_mix_up_answers(worker, tmp_path):
    """The interrupted call's process goes, so that its answer is not taken for that of the next."""
    note = tmp_path / "note"
    thread = when(note, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        worker.call(helpers.hang, str(note))
    thread.join()
    assert is_gone(int(note.read_text()))
    assert worker.call(helpers.echo, 2) == 2


def test_ctrl_c_at_the_terminal_is_ours_to_handle(worker):
    """The worker is in a session of its own, and ignores the signal if it gets it."""
    process = worker.call(helpers.pid)
    assert os.getsid(process) == process
    os.kill(process, signal.SIGINT)
    assert worker.call(helpers.pid) == process


def test_close_ends_the_process():
    """So does the end of a with statement, and so does forgetting the worker."""
    with Worker() as worker:
        process = worker.call(helpers.pid)
    assert is_gone(process)
    worker = Worker()
    process = worker.call(helpers.pid)
    del worker
    assert is_gone(process)


def test_an_idle_process_may_clean_up(worker, tmp_path):
    """What it registered for its end is done."""
    process = worker.call(helpers.leave_a_note_at_exit, str(tmp_path / "note"))
    worker.close()
    assert is_gone(process) and (tmp_path / "note").exists()


def test_an_idle_process_that_does_not_leave_is_killed():
    """It gets some seconds, and no more."""
    with Worker(WorkerLimits(leave_seconds=0.05)) as worker:
        process = worker.call(helpers.hang_at_exit)
    assert is_gone(process)


def test_a_busy_process_is_not_waited_for(worker, tmp_path):
    """Its end is not orderly."""
    worker.call(helpers.leave_a_note_at_exit, str(tmp_path / "note"))
    with pytest.raises(WorkerTimedOut):
        worker.call(helpers.hang, seconds=0.05)
    assert not (tmp_path / "note").exists()


def test_a_worker_outlives_the_thread_that_started_it(worker):
    """Pools start workers in one thread and call them from another."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(worker.call(helpers.pid)))
    thread.start()
    thread.join()
    until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    assert worker.call(helpers.pid) == seen[0]


def test_a_process_serves_so_many_calls_and_no_more():
    """An error is an answer too; after a crash it is counted from the start."""
    with Worker(max_calls=2) as worker:
        first = worker.call(helpers.pid)
        with pytest.raises(ToolError):
            worker.call(helpers.divide, 1, 0)
        second = worker.call(helpers.pid)
        assert is_gone(first)
        with pytest.raises(WorkerCrashed):
            worker.call(helpers.leave, 3)
        third, again, fourth = (worker.call(helpers.pid) for _ in range(3))
    assert third == again
    assert len({first, second, third, fourth}) == 4


# -- starting --------------------------------------------------------------------------------------


def test_the_start_function_is_called_once_before_the_first_call():
    """With its arguments; after a crash it is called in the fresh process again."""
    with Worker(start=helpers.remember, start_arguments=(1, "two")) as worker:
        assert worker.call(helpers.started_with) == worker.call(helpers.started_with) == [1, "two"]
        with pytest.raises(WorkerCrashed):
            worker.call(helpers.leave, 3)
        assert worker.call(helpers.started_with) == [1, "two"]


def test_an_error_of_the_start_function_is_raised():
    """By every call that would have needed it."""
    with Worker(start=helpers.fail_to_start) as worker:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="cannot start") as caught:
                worker.call(helpers.pid)
            assert caught.value.hint == "start otherwise"


def test_a_death_of_the_start_function_is_told():
    """As that of a call."""
    with (
        Worker(start=helpers.leave, start_arguments=(3,)) as worker,
        pytest.raises(WorkerCrashed, match="status 3"),
    ):
        worker.call(helpers.pid)


def test_ctrl_c_at_the_start_leaves_no_process(tmp_path, orderly_ends):
    """What is busy with its start is killed at once, as what is busy with a call."""
    note = tmp_path / "note"
    thread = when(note, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    with Worker(start=helpers.hang, start_arguments=(str(note),)) as worker:
        with pytest.raises(KeyboardInterrupt):
            worker.call(helpers.pid)
        thread.join()
        assert is_gone(int(note.read_text()))
    assert orderly_ends == []


def test_the_environment_is_ours_with_what_was_given(monkeypatch):
    """Given variables come first; the package is found in any case."""
    monkeypatch.setenv("FROM_US", "a")
    monkeypatch.setenv("BOTH", "a")
    with Worker(environment={"GIVEN": "b", "BOTH": "b"}) as worker:
        assert [worker.call(helpers.variable, x) for x in ("FROM_US", "GIVEN", "BOTH")] == ["a", "b", "b"]


# -- the process itself ----------------------------------------------------------------------------


@contextlib.contextmanager
def bare_worker(parent: int) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """A worker process without a Worker, that believes `parent` to be its parent."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, startup.__file__,
             str(theirs.fileno()), str(parent)],
            pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL,
        )  # fmt: skip
    with Connection(ours.detach()) as connection, process:
        try:
            yield process, connection
        finally:
            process.kill()


def test_a_worker_whose_socket_closes_ends_by_itself():
    """That is how it goes with its parent where the system has no signal for it."""
    with bare_worker(os.getpid()) as (process, connection):
        connection.send((1024 * MIB, ("isolation_helpers", "remember"), (1,)))
        assert connection.recv() == ("value", None)
        for call, kind in [(("echo", (2,)), "value"), (("divide", (1, 0)), "error")]:
            connection.send((("isolation_helpers", call[0]), call[1]))
            assert connection.recv()[0] == kind
        connection.close()
        assert process.wait(timeout=60) == 0


def test_a_worker_whose_parent_has_gone_before_ends_at_once():
    """The parent may die before the worker has asked to be told."""
    with bare_worker(parent=os.getpid() + 1) as (process, _):
        assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("hang", [helpers.hang, helpers.hang_in_native_code])
def test_a_worker_ends_when_its_parent_is_killed(tmp_path, hang):
    """However busy it is."""
    note = tmp_path / "note"
    program = (
        "import isolation_helpers; from dispatch_profiler.isolation import Worker\n"
        f"Worker().call(isolation_helpers.{hang.__name__}, {str(note)!r})"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        until(note.exists)
        worker = int(note.read_text())
        assert not is_gone(worker)
        parent.kill()
    try:
        until(lambda: is_gone(worker))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


# -- memory of the system --------------------------------------------------------------------------


def test_available_memory_is_what_the_system_says(monkeypatch):
    """In bytes; Linux says it in KiB."""
    monkeypatch.setattr(Path, "read_text", lambda self: "MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    assert isolation.available_memory() == 2 * MIB


@pytest.mark.parametrize("text", [None, "MemTotal: 9 kB\n"], ids=["no file", "no line"])
def test_available_memory_is_guessed_where_the_system_is_silent(monkeypatch, text):
    """4 GiB."""

    def read_text(self: Path) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    assert isolation.available_memory() == 4 * 2**30


def test_memory_is_limited_beyond_what_is_mapped(monkeypatch):
    """Pages of statm become bytes, and the hard limit stays."""
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(Path, "read_text", lambda self: "100 50 10\n")
    monkeypatch.setattr(isolation.resource, "getpagesize", lambda: 4096)
    monkeypatch.setattr(isolation.resource, "getrlimit", lambda kind: (-1, 2**40))
    monkeypatch.setattr(isolation.resource, "setrlimit", lambda kind, limits: asked.append((kind, limits)))
    isolation.limit_memory(1000)
    assert asked == [(isolation.resource.RLIMIT_AS, (100 * 4096 + 1000, 2**40))]


@pytest.mark.parametrize("hard", [-1, 2**40], ids=["without a hard limit", "with one"])
def test_a_limit_beyond_what_the_system_allows_is_what_it_allows(monkeypatch, hard):
    """`ulimit -Hv` of a cluster's node, or more than any machine has: the process starts all the same."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(isolation.resource, "getrlimit", lambda kind: (-1, hard))
    monkeypatch.setattr(isolation.resource, "setrlimit", lambda kind, limits: asked.append(limits))
    isolation.limit_memory(2**70)
    assert asked == [(sys.maxsize if hard == -1 else hard, hard)]


def test_a_forked_process_has_workers_of_its_own():
    """A DataLoader's process compiles, too, although the thread that starts workers is its parent's."""
    program = (
        "import os\nfrom dispatch_profiler.isolation import Worker\nimport isolation_helpers as helpers\n"
        "with Worker() as worker:\n    worker.call(helpers.pid)\n"
        "    if (child := os.fork()) == 0:\n"
        "        with Worker() as own:\n            os._exit(own.call(helpers.echo, 3))\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), worker.call(helpers.echo, 4))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout == "3 4\n", done.stderr


def test_a_forked_process_leaves_a_worker_to_the_process_that_started_it():
    """It starts one of its own, takes no answer of the other, and ends neither that nor its work when it ends."""
    script = (
        f"import os, sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "import isolation_helpers as helpers\nfrom dispatch_profiler.isolation import Worker\n"
        "worker = Worker()\nfirst = worker.call(helpers.pid)\n"
        "if os.fork() == 0:\n"
        "    own = worker.call(helpers.pid)\n"
        "    print(own != first, worker.call(helpers.echo, 3), flush=True)\n"
        "    sys.exit()\n"
        "os.wait()\nprint(worker.call(helpers.pid) == first)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True 3\nTrue\n", done.stderr
