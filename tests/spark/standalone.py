"""A Spark standalone cluster of one host, started from the wheel of pyspark, and jobs for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.conftest import ROOT
from tests.support import eventually

SPARK_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment, without the paths of Python modules and of Spark."""
    own = {"PYTHONPATH", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    found = {name: value for name, value in os.environ.items() if name not in own}
    return found | {"SPARK_HOME": str(SPARK_HOME)} | variables


def python_without(folder: Path, *absent: str) -> Path:
    """Make a Python in ``folder`` with the modules of this one, except these."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True
    )
    [its_own] = (folder / "lib").glob("python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if "isolog" not in installed.name and installed.name not in absent:
            (its_own / installed.name).symlink_to(installed)
    return folder / "bin" / "python"


def install(python: Path) -> Path:
    """Make the Python find isolog in the checkout."""
    [its_own] = (python.parents[1] / "lib").glob("python*/site-packages")
    (its_own / "isolog.pth").write_text(f"{ROOT}\n")
    return python


def named(folder: Path, **pythons: Path) -> Path:
    """Make a folder for PATH in which these names run these Pythons."""
    folder.mkdir()
    for name, python in pythons.items():
        file = folder / name.replace("_", "-")
        file.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        file.chmod(0o755)
    return folder


class Standalone:
    """A master, and a worker of one core for each of the given folders of commands."""

    def __init__(self, folder: Path, commands: Sequence[Path]) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.master: str = eventually(lambda: _said(log, _MASTER), timeout_s=120)
            logs = [
                self._start(
                    f"worker-{number}",
                    "worker.Worker",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(folder / f"work-{number}"), self.master),
                    path=each,
                )
                for number, each in enumerate(commands)
            ]
            for each in logs:
                eventually(lambda each=each: _REGISTERED in each.read_text(), timeout_s=120)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, kind: str, *arguments: str, path: Path | None = None) -> Path:
        log = self.folder / f"{name}.log"
        start = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        variables = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _short_lived()}
        if path is not None:
            variables["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*start, "--webui-port", "0", *arguments],
                cwd=self.folder,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._processes.append(process)
        return log

    def stop(self) -> None:
        """End the workers with their executors, and then the master."""
        for process in reversed(self._processes):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()

    def submit(self, folder: Path, *command: str | Path, code: int = 0, **variables: str) -> str:
        """Run a job on both workers. Return its output."""
        waiting = {
            "spark.cores.max": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _short_lived(),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }
        confs = (part for pair in waiting.items() for part in ("--conf", "=".join(pair)))
        return submit(self.master, folder, *confs, *command, code=code, **variables)


def submit(master: str, folder: Path, *command: str | Path, code: int = 0, **variables: str) -> str:
    """Run spark-submit. Return its output, or raise an AssertionError with it."""
    start = [SPARK_HOME / "bin" / "spark-submit", "--master", master]
    done = subprocess.run(
        [*start, "--conf", "spark.ui.enabled=false", *command],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == code, done.stdout[-8000:]
    return done.stdout


def _short_lived() -> str:
    """Options for a JVM that lives for a minute."""
    return os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def _said(log: Path, pattern: re.Pattern[str]) -> str | None:
    found = pattern.search(log.read_text())
    return found[1] if found else None
