"""Start a Flower 1.41 deployment on loopback, run an app on it, and take everything down again.

    with deployment(Path("work"), nodes=3) as fleet:
        run = fleet.run(app_dir, {"num-rounds": 3})       # blocks; `flwr run --stream`
        print(run.status, run.log)

Every process gets its own port, its own FLWR_HOME below the work directory, no telemetry and no
update check. On the way out (also after an error) every process that carries our FLWR_HOME root in
its environment is ended, grandchildren included.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Run:
    run_id: str
    status: str
    log: str
    seconds: float
    exit_code: int


@dataclass
class Process:
    name: str
    popen: subprocess.Popen[bytes]
    log_path: Path
    port: int

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


@dataclass
class Fleet:
    root: Path
    link: Process | None = None
    nodes: list[Process] = field(default_factory=list)
    port: int = 0

    def environment(self, name: str) -> dict[str, str]:
        home = self.root / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # Flower starts its helpers by name
        return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), "TACITA_FLEET": str(self.root)}

    def spawn(self, name: str, command: list[str], port: int) -> Process:
        log_path = self.root / f"{name}.log"
        with log_path.open("wb") as out:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment(name),
                cwd=self.root,
                start_new_session=True,
            )
        return Process(name, popen, log_path, port)

    def start_link(self, simulation: bool, database: bool, deadline: float = 40.0) -> None:
        self.port = self.port or free_port()
        command = [str(BIN / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--simulation"] if simulation else []
        command += ["--database", str(self.root / "state.db")] if database else []
        self.link = self.spawn("superlink", command, self.port)
        wait_until(lambda: healthy(self.port), deadline, self.link)
        config = Path(self.environment("cli")["FLWR_HOME"]) / "config.toml"
        config.write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start_node(
        self, partition: int, partitions: int, deadline: float = 40.0, wait: bool = True, config: str | None = None
    ) -> Process:
        """Start a SuperNode with its partition, or with another node configuration; an empty one is none."""
        port = free_port()
        chosen = f"partition-id={partition} num-partitions={partitions}" if config is None else config
        command = [
            str(BIN / "flower-supernode"),
            "--insecure",
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            *(["--node-config", chosen] if chosen else []),
        ]
        node = self.spawn(f"supernode{partition}-{port}", command, port)
        self.nodes.append(node)
        if wait:
            wait_until(lambda: "SuperNode ID:" in node.log, deadline, node)
        return node

    def stop_node(self, node: Process) -> None:
        """End a SuperNode as its operator would, and wait until it is gone."""
        node.popen.terminate()
        node.popen.wait(30)

    def cli(self, *arguments: str, deadline: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment("cli"),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=deadline,
        )

    def status(self, run_id: str) -> str:
        return json.loads(self.cli("list", "--run-id", run_id, "here", "--format", "json").stdout)["runs"][0]["status"]

    def run(
        self, app: Path, config: dict[str, object] | None = None, federation: str = "", deadline: float = 180.0
    ) -> Run:
        started = time.monotonic()
        command = ["run", str(app), "here", "--stream"]
        command += ["--run-config", toml_pairs(config)] if config else []
        command += ["--federation-config", federation] if federation else []
        done = self.cli(*command, deadline=deadline)
        seconds = time.monotonic() - started
        found = re.search(r"started run (\d+)", done.stdout)
        run_id = found.group(1) if found else ""
        return Run(run_id, self.status(run_id) if run_id else "refused", done.stdout, seconds, done.returncode)

    def begin(self, app: Path, config: dict[str, object]) -> subprocess.Popen[bytes]:
        """Start a run and do not wait for it."""
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream", "--run-config", toml_pairs(config)]
        return subprocess.Popen(
            command,
            env=self.environment("cli"),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def pids(self) -> dict[int, str]:
        """Return every living process of this fleet, by the marker in its environment."""
        marker = f"TACITA_FLEET={self.root}\0".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                other = entry.name.isdigit() and int(entry.name) != os.getpid()
                if other and marker in (entry / "environ").read_bytes() + b"\0":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def stop(self) -> None:
        for process in [*self.nodes, *([self.link] if self.link else [])]:
            if process.popen.poll() is None:
                process.popen.terminate()
        for sign, patience in ((None, 6.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            for pid in self.pids() if sign else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            end = time.monotonic() + patience
            while time.monotonic() < end:
                for process in [*self.nodes, *([self.link] if self.link else [])]:
                    process.popen.poll()  # reap
                if not self.pids():
                    return
                time.sleep(0.1)
        raise RuntimeError(f"left behind: {self.pids()}")


def toml_pairs(config: dict[str, object]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_until(ready, deadline: float, process: Process) -> None:
    end = time.monotonic() + deadline
    while not ready():
        if process.popen.poll() is not None:
            raise RuntimeError(f"{process.name} ended with {process.popen.returncode}:\n{process.log[-3000:]}")
        if time.monotonic() > end:
            raise TimeoutError(f"{process.name} not ready after {deadline} s:\n{process.log[-3000:]}")
        time.sleep(0.1)


@contextlib.contextmanager
def deployment(root: Path, nodes: int = 3, simulation: bool = False, database: bool = False) -> Iterator[Fleet]:
    root = Path(root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(root)
    try:
        fleet.start_link(simulation, database)
        if not simulation:
            started = [fleet.start_node(i, nodes, wait=False) for i in range(nodes)]
            for node in started:
                wait_until(lambda node=node: "SuperNode ID:" in node.log, 40.0, node)
        yield fleet
    finally:
        fleet.stop()
