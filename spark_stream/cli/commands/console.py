"""``isolog console``: a web page of the cluster, until it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.options import Bootstrap, LogPath, access, note, where
from spark_stream.errors import InvalidOption, Unsupported

READY = "isolog console ready "
_ONE_HOUR_MIN = 60


def console(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."),
    ] = "127.0.0.1:8080",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let users abort transactions.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name under which browsers reach it, such as that of a proxy. Repeatable.",
            show_default=False,
        ),
    ] = None,
    server_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="The certificate that the console shows to browsers. (An option of this name"
            " before the command is the client's certificate for the brokers.)",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    server_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            help="Its key.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    idle_minutes: Annotated[
        float,
        typer.Option(metavar="N", min=0.1, help="After how long without activity a login ends."),
    ] = _ONE_HOUR_MIN,
) -> None:
    """Serve a web page that shows the cluster live: partitions, records, transactions, consumers.

    If the cluster asks who calls, users log in on the page, and see what they may see. Without
    --allow-changes nothing can be changed.

    \b
    isolog console --bootstrap localhost:9092
    isolog console --bootstrap broker-1:9092 --listen 0.0.0.0:8443 --tls-cert c.pem --tls-key k.pem
    """
    try:
        # Most commands need no web server.
        from spark_stream.console.app import ServerOptions, serve, without_credential
        from spark_stream.console.sessions import LogPlace
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "spark_stream":
            raise
        raise Unsupported(
            f"the console needs {error.name}, which is not installed",
            hint="Install it: pip install 'isolog[console]'.",
        ) from None
    if (server_cert is None) is not (server_key is None):
        raise InvalidOption("--tls-cert and --tls-key go together", hint="Give both, or neither.")
    bootstrap, path = where(bootstrap, path)
    serve(
        LogPlace(
            bootstrap,
            None if path is None else path.absolute(),
            without_credential(access()),
        ),
        ServerOptions(
            listen,
            tuple(allowed_host or ()),
            server_cert,
            server_key,
            allow_changes,
            60 * idle_minutes,
        ),
        note,
        _print_ready,
    )


def _print_ready(address: str) -> None:
    print(f"{READY}{address}", flush=True)
