"""Examples with three brokers, on free ports."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT, stop_broker
from tests.demo.conftest import Shell
from tests.support import free_port

PORTS = re.compile(r"\b9[0-2]9[2-5]\b")


@contextmanager
def three_brokers(
    folder: Path, shell: Shell, *, configured: bool = True
) -> Iterator[Callable[[str], str]]:
    """Run shell commands in the folder, and end all brokers after.

    ``configured``: the folder has the checkout's configurations. Otherwise it is empty.
    """
    ports: dict[str, str] = defaultdict(lambda: str(free_port()))

    def on_free_ports(text: str) -> str:
        return PORTS.sub(lambda found: ports[found[0]], text)

    if configured:
        for name in ("three-brokers", "secure-three-brokers"):
            shutil.copytree(ROOT / "conf" / name, folder / "conf" / name)
            for file in (folder / "conf" / name).iterdir():
                file.write_text(on_free_ports(file.read_text()))

    addresses = on_free_ports("127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094")

    def run(commands: str) -> str:
        bash = ["bash", "-eu", "-o", "pipefail", "-c", on_free_ports(commands)]
        # On a busy machine, a test may send no request to a broker for minutes.
        return shell.run(bash, folder, ISOLOG_BOOTSTRAP=addresses, ISOLOG_IDLE_SECONDS="600")

    try:
        yield run
    finally:
        for directory in folder.glob("isolog-data/broker-*"):
            stop_broker(directory)
