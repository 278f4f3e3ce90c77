"""``isolog console``: serve a web page of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.options import Bootstrap, LogPath, access, note, where
from spark_stream.errors import InvalidOption, Unsupported
from spark_stream.extras import install_hint

READY = "isolog console ready "
_ONE_HOUR_MIN = 60


def console(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on. Port 0 means a free port."),
    ] = "127.0.0.1:8080",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer no actions, whatever a user's permissions.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another host name of the console for browsers, such as of a proxy. Repeatable.",
            show_default=False,
        ),
    ] = None,
    server_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Certificate of the console for browsers. (An option of this name before the"
            " command is the client certificate for the brokers.)",
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
            help="Private key of --tls-cert.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    idle_minutes: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.1, help="Minutes without activity after which a login ends."
        ),
    ] = _ONE_HOUR_MIN,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the history of the last day (6 MB) in this file. Default: in memory.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    history_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a token for the samples of the history, if the cluster has"
            " authentication. Users who may describe the cluster see the history.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a web page with live partitions, records, transactions and consumers of the cluster.

    If the cluster requires authentication, users log in on the page and see what their permissions
    allow. Their actions need a confirmation. With --read-only the page has no actions.

    \b
    isolog console --bootstrap localhost:9092
    isolog console --bootstrap broker-1:9092 --listen 0.0.0.0:8443 --tls-cert c.pem --tls-key k.pem
    """
    try:
        # Most commands need no web server.
        from spark_stream.console.app import ServerOptions, serve
        from spark_stream.console.sessions import LogLocation
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "spark_stream":
            raise
        raise Unsupported(
            f"the console needs {error.name}, which is not installed",
            hint=install_hint("console"),
        ) from None
    if (server_cert is None) is not (server_key is None):
        raise InvalidOption("--tls-cert and --tls-key go together", hint="Give both, or neither.")
    bootstrap, path = where(bootstrap, path)
    serve(
        LogLocation(
            bootstrap,
            None if path is None else path.absolute(),
            access().without_credential(),
        ),
        ServerOptions(
            listen,
            tuple(allowed_host or ()),
            server_cert,
            server_key,
            not read_only,
            60 * idle_minutes,
            history,
            history_token_file,
        ),
        note,
        _print_ready,
    )


def _print_ready(address: str) -> None:
    print(f"{READY}{address}", flush=True)
