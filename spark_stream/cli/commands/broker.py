"""``isolog broker``: start, stop, status, and the broker process of a directory.

A broker runs if it holds the lock of its directory. ``broker.json`` alone is no evidence: the file
survives a ``kill -9``, and another process may have got its process id since.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer
from msgspec import Struct
from msgspec.json import encode
from rich.table import Table

from spark_stream.cli.options import (
    PATH_VARIABLE,
    Bootstrap,
    Listing,
    Output,
    access,
    counted,
    named_directory,
    note,
    where,
)
from spark_stream.cli.output.texts import as_json, cell, console, size_text
from spark_stream.directories import local_directory
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidConfig,
    InvalidOption,
    RequestTimeout,
    StorageFailure,
    from_wire,
)
from spark_stream.operating_system import check_can_lock, end, is_running

READY: Final = "isolog broker ready "
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_POLL_S: Final = 0.02
DIRECTORY_VARIABLE: Final = "ISOLOG_DIR"  # BrokerConfig reads it too

app = typer.Typer(no_args_is_help=True, help="Start, stop and inspect a broker.")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "--path",
        metavar="DIR",
        parser=named_directory,
        help=f"Directory of the log. Variable: {DIRECTORY_VARIABLE} or {PATH_VARIABLE}.",
        show_default=False,
    ),
]


@app.command()
def start(
    context: typer.Context,
    directory: Directory = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on. Port 0 means a free port. Default: 127.0.0.1:9092.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Address for clients and other brokers, if it differs from --listen."
            " Required with --listen 0.0.0.0:PORT.",
            show_default=False,
        ),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on for the other brokers of the cluster."
            " Default: a free port of the same host.",
            show_default=False,
        ),
    ] = None,
    flight_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the Arrow Flight service for other languages. Default: no service.",
            show_default=False,
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the HTTP service for metrics and health, without authentication."
            " Default: no service.",
            show_default=False,
        ),
    ] = None,
    kafka_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a Kafka gateway, which the broker starts as another process."
            " Default: no gateway.",
            show_default=False,
        ),
    ] = None,
    conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration file (TOML). Options take precedence over it.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Metadata store of the cluster: a file if all brokers run on one host, or"
            " etcd://HOST:PORT,…/NAME. Default: a file in DIR.",
            show_default=False,
        ),
    ] = None,
    broker_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="NAME",
            help="Id of the broker, if DIR is new. Default: a unique id.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Rack of the broker. Replicas of a partition are placed in different racks.",
            show_default=False,
        ),
    ] = None,
    daemon: Annotated[
        bool,
        typer.Option(
            "--daemon", help="Run in the background. The command returns when the broker serves."
        ),
    ] = False,
    idle_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.0,
            help="Stop after this many seconds without a call. Default: 0, which means never.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C. It prints its address when it serves.

    \b
    isolog broker start --dir data/
    isolog broker start --dir data/ --listen 127.0.0.1:0 --daemon
    isolog broker start --conf conf/broker.toml --listen 0.0.0.0:9092 --advertise log.example.org
    """
    check_can_lock()
    from spark_stream.broker.config import BrokerConfig

    def load(directory: Path | None) -> BrokerConfig:
        return BrokerConfig.load(
            conf,
            dir=directory,
            id=broker_id,
            rack=rack,
            metadata=metadata,
            listen=listen,
            peer_listen=peer_listen,
            flight_listen=flight_listen,
            metrics_listen=metrics_listen,
            kafka_listen=kafka_listen,
            advertise=advertise,
            idle_seconds=idle_seconds,
        )

    try:
        config = load(directory)
    except InvalidConfig as error:
        if directory is not None or error.details.get("setting") != "dir":
            raise
        config = load(_named_directory())
    if not daemon:
        from spark_stream.broker.process import serve
        from spark_stream.broker.serving.memory import block_pandas, limit_memory

        if context.obj:
            limit_memory(config.memory_bytes)
            block_pandas()
        serve(config)
        return
    flags = ["--listen", config.listen]
    flags += ["--advertise", config.advertise] if config.advertise else []
    flags += ["--peer-listen", config.peer_listen] if config.peer_listen else []
    flags += ["--flight-listen", config.flight_listen] if config.flight_listen else []
    flags += ["--metrics-listen", config.metrics_listen] if config.metrics_listen else []
    flags += ["--kafka-listen", config.kafka_listen] if config.kafka_listen else []
    flags += ["--conf", str(conf.absolute())] if conf is not None else []
    flags += ["--idle-seconds", str(config.idle_seconds)]
    place = config.place
    if isinstance(place, Path):  # as a URL, because the directory may have any name
        flags += ["--metadata", f"sqlite://{quote(str(place.absolute()))}"]
    elif place is not None:
        flags += ["--metadata", str(place)]
    flags += ["--id", config.id] if config.id else []
    flags += ["--rack", config.rack] if config.rack else []
    print(start_in_background(config.dir, flags, _absolute_files(config)), flush=True)


@app.command()
def stop(
    directory: Directory = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="Maximum wait for the exit of the process."),
    ] = 30.0,
) -> None:
    """Stop the broker of a directory, and wait for its exit. Acknowledged records are not lost.

    \b
    isolog broker stop --dir data/
    """
    pid = stop_process(_directory(directory), timeout)
    note(f"isolog broker stopped (process {pid})")


def _absolute_files(config: BrokerConfig) -> dict[str, str]:
    """Return variables with absolute paths of files. A daemon has another working directory."""
    found = {
        f"ISOLOG_{name.upper()}": encode(each.absolute()).decode()
        for name, each in (("tls", config.tls), ("peer_tls", config.peer_tls))
        if each.cert is not None
    }
    if config.jwt is not None:
        found["ISOLOG_JWT"] = config.jwt.absolute().model_dump_json()
    if config.kafka_ca is not None:
        found["ISOLOG_KAFKA_CA"] = str(Path(config.kafka_ca).absolute())
    return found


@app.command()
def status(
    directory: Directory = None,
    bootstrap: Bootstrap = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Maximum wait for the answer.")
    ] = 5.0,
    output: Output = Listing.TABLE,
) -> None:
    """Show the status of a broker. Exit code 1 if none runs. The command never starts a broker.

    \b
    isolog broker status --dir data/
    isolog broker status --bootstrap localhost:9092 --output json
    """
    from spark_stream.client.connecting.connection import ClusterConnection
    from spark_stream.client.log import Log

    if bootstrap is not None and directory is not None:
        raise InvalidOption("--dir and --bootstrap exclude each other", hint="Give one of them.")
    if directory is None and not os.environ.get(DIRECTORY_VARIABLE):
        bootstrap, directory = where(bootstrap, None)
    address = bootstrap or _address(directory)
    connection = ClusterConnection(address, timeout_s=timeout, access=access())
    connection.connect()
    with Log(connection) as log:
        show_status(log.status(), output)


def _address(directory: Path | None) -> str:
    """Return the address at which the directory's broker listens.

    Raises:
        BrokerUnavailable: no broker runs, or it does not serve yet.
    """
    directory = _directory(directory)
    found = running_broker(directory)
    if found is None:
        raise BrokerUnavailable(
            f"no broker serves {directory}", hint="Start a broker: `isolog broker start`."
        )
    if found.address is None:
        raise BrokerUnavailable(f"the broker of {directory} does not serve yet", hint="Try again.")
    return found.address


def _directory(directory: Path | None) -> Path:
    """Return the directory of --dir, else of a variable.

    Raises:
        InvalidOption: neither is set.
        BrokerUnavailable: the directory does not exist, so no broker serves it.
    """
    if directory is None:
        directory = _named_directory()
    if not directory.is_dir():
        raise BrokerUnavailable(f"there is no directory {directory}", hint="Check --dir.")
    return directory.absolute()


def _named_directory() -> Path:
    """Return the directory of the broker's variable, else of the variable of all commands."""
    for variable in (DIRECTORY_VARIABLE, PATH_VARIABLE):
        if named := os.environ.get(variable):
            return local_directory(named, variable, None)
    raise InvalidOption(
        "no directory is named",
        hint=f"Give --dir DIR, or set {DIRECTORY_VARIABLE} or {PATH_VARIABLE}.",
    )


# -- the broker process of a directory -------------------------------------------------------------


class RunningBroker(Struct, frozen=True):
    """A broker that holds a directory. ``address`` is None until it serves."""

    pid: int | None = None
    address: str | None = None


def running_broker(directory: Path) -> RunningBroker | None:
    """Return the broker of the directory, None if no broker runs."""
    from spark_stream.client.connecting.embedded import lock_held

    try:
        if not lock_held(directory):
            return None
    except OSError as error:
        raise StorageFailure(f"{directory}: {error.strerror}") from None
    try:
        facts = json.loads((directory / "broker.json").read_text())
        return RunningBroker(int(facts["pid"]), str(facts["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        return RunningBroker()


def start_in_background(directory: Path, flags: list[str], variables: Mapping[str, str]) -> str:
    """Start a broker in a new session, and return its ready line.

    The broker is a new interpreter, because this process has threads and must not fork. The
    broker's output goes to ``broker.log`` in its directory.

    Raises:
        IsologError: the broker did not start.
    """
    from spark_stream.client.connecting.embedded import (
        broker_command,
        broker_environment,
        check_ours,
    )

    directory = directory.absolute()
    check_ours(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(directory / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise StorageFailure(
            f"{directory}: {error.strerror}",
            hint="The broker needs the permission to create the directory, and to write to it.",
        ) from None
    try:
        process = subprocess.Popen(
            broker_command(directory, *flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**broker_environment(), **variables},
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdout is not None
    line = ""
    with process.stdout as output:
        if select.select([output], [], [], _START_SECONDS)[0]:
            line = output.readline().decode().strip()
    if line.startswith(READY):
        return line
    _await_end(process)
    with suppress(ValueError, KeyError, TypeError):
        raise from_wire(json.loads(line)["error"])
    raise BrokerUnavailable(
        f"the broker of {directory} did not start",
        hint=f"See {directory / 'broker.log'}.",
    )


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the exit of a broker that failed to start. Kill it if it does not exit in time."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_process(directory: Path, timeout_s: float) -> int:
    """Stop the broker of the directory, wait for its exit, and return its process id.

    Raises:
        BrokerUnavailable: no broker runs, or it is out of reach (on another host, in a container).
        RequestTimeout: The process did not exit in time. It may still do so.
    """
    deadline = time.monotonic() + timeout_s
    found = running_broker(directory)
    while found is not None and found.pid is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # it holds the lock but does not serve yet
        found = running_broker(directory)
    if found is None:
        raise BrokerUnavailable(f"no broker serves {directory}", hint="There is nothing to stop.")
    process = None if found.pid is None else _holder(found.pid, directory)
    if process is None:
        raise BrokerUnavailable(
            f"a broker serves {directory}, but this command cannot send a signal to its process",
            hint="Stop it on its host, in its container, or as its user.",
        )
    end(process)
    while is_running(process):
        if time.monotonic() > deadline:
            raise RequestTimeout(
                f"the broker of {directory} (process {process.pid}) did not stop in"
                f" {timeout_s:g} s",
                hint="Increase --timeout, or use `kill -9`. Acknowledged records are not lost.",
            )
        time.sleep(_POLL_S)
    return process.pid


def _holder(pid: int, directory: Path) -> psutil.Process | None:
    """Return the process if it has the directory's lock file open, else None.

    psutil identifies a process by its id and start time, so a later process of the same id is
    another one.
    """
    import psutil  # slow to import

    try:
        process = psutil.Process(pid)
        lock = (directory / "broker.lock").stat()
        for file in process.open_files():
            with suppress(OSError):
                if os.path.samestat(os.stat(file.path), lock):
                    return process
    except (OSError, psutil.Error):
        pass  # another user's process
    return None


if TYPE_CHECKING:
    import psutil

    from spark_stream.broker.config import BrokerConfig
    from spark_stream.wire.cluster_messages import BrokerStatus


def show_status(status: BrokerStatus, shape: Listing) -> None:
    """Print the status that a broker reports."""
    facts = as_json(status)
    if shape is Listing.JSON:
        print(json.dumps(facts, indent=2))
        return
    facts["memory"] = size_text(status.memory)
    facts["uptime"] = f"{facts.pop('uptime_s'):.0f} s"
    checked_ms = facts.pop("checked_ms")
    facts["last check of the files"] = (
        "not yet" if checked_ms is None else str(datetime.fromtimestamp(checked_ms // 1000, UTC))
    )
    facts["damaged replicas"] = (
        ", ".join(f"{name} from offset {offset}" for name, offset in facts.pop("damaged").items())
        or "none"
    )
    facts["refused writes"] = (
        ", ".join(f"{name}: {code}" for name, code in facts.pop("refused").items()) or "none"
    )
    facts["principals"] = ", ".join(
        f"{name} {counted(use.connections, 'connection')}"
        for name, use in status.principals.items()
    )
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), cell(str(value)))
    console().print(table)
