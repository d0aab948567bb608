"""A Dask cluster of real processes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

#: Long enough for the slowest machine: what is waited for comes in seconds.
PATIENCE = 120.0


@dataclass
class LocalCluster:
    """A scheduler with workers, each in a folder and a home of its own; they import from `paths`."""

    folder: Path
    paths: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    @property
    def address(self) -> str:
        return str(json.loads((self.folder / "scheduler.json").read_text())["address"])

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        place = self.folder / str(self.started)
        self.started += 1
        place.mkdir(parents=True)
        with (self.folder / f"{place.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command, "--no-dashboard"],
                cwd=place,
                env={**os.environ, "HOME": str(place), "PYTHONPATH": self.paths, **environment},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start_scheduler(self, *options: str, host: str = "--host=127.0.0.1", **environment: str) -> None:
        file = self.folder / "scheduler.json"
        self.start(
            "scheduler",
            *filter(None, [host]),
            "--port=0",
            f"--scheduler-file={file}",
            *options,
            **environment,
        )
        self.wait_for(lambda: file.exists() and file.read_text().endswith("}"))

    def start_worker(
        self, *options: str, host: str = "--host=127.0.0.1", **environment: str
    ) -> subprocess.Popen[bytes]:
        # Without a nanny: a worker that is killed stays dead.
        fixed = ("--nthreads=1", "--no-nanny")
        return self.start("worker", self.address, *fixed, *filter(None, [host]), *options, **environment)

    def wait_for_workers(self, count: int) -> None:
        import distributed

        with distributed.Client(self.address, set_as_default=False) as client:
            self.wait_for(lambda: len(client.nthreads()) == count)

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert all(p.poll() is None for p in self.processes), self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """A process that is no longer expected to live."""
        self.processes.remove(process)
        process.kill()
        process.wait()

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
