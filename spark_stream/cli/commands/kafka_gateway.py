"""``isolog kafka-gateway``: serve Kafka's protocol."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.options import (
    Bootstrap,
    LogPath,
    access,
    connection,
    listening_at,
    note,
    where,
)
from spark_stream.errors import InvalidOption, Unauthenticated
from spark_stream.operating_system import raise_open_files_limit
from spark_stream.wire.addresses import is_wildcard, joined

if TYPE_CHECKING:
    from spark_stream.kafka.peers import GatewayAddress

READY = "isolog kafka-gateway ready "
_STDIN = 0


def kafka_gateway(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on. Port 0 means a free port."),
    ] = "127.0.0.1:9192",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the gateway for clients on other hosts. Default: --listen.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Addresses of the cluster's other gateways, as they advertise them.",
            show_default=False,
        ),
    ] = "",
    sasl: Annotated[
        bool,
        typer.Option("--sasl", help="Clients log in as users of the cluster, by SASL."),
    ] = False,
    server_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Certificate of the gateway for clients. (An option of this name before the"
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
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of metrics and health, without authentication. Default: no service.",
            show_default=False,
        ),
    ] = None,
    until_eof: Annotated[
        bool,
        typer.Option(
            "--until-eof",
            help="End at the end of standard input. A broker starts its gateway with this option.",
        ),
    ] = False,
) -> None:
    """Serve Kafka's protocol, for Kafka's producers, consumers and tools.

    Several gateways serve a cluster together if each has the others as --peers. With --sasl each
    client acts as the user that it logs in as. Otherwise clients act with the permissions of the
    gateway. In a topic with other columns than Kafka's, a value is the row as JSON.

    \b
    isolog kafka-gateway --bootstrap localhost:9092
    kcat -b localhost:9192 -t events -C
    """
    from spark_stream.kafka.counts import serve_counts
    from spark_stream.kafka.gateway import KafkaGateway, tls_context
    from spark_stream.kafka.logins import ClusterUsers, connector
    from spark_stream.kafka.messages.schemas import request_names
    from spark_stream.kafka.peers import GatewayAddress, Gateways

    raise_open_files_limit()
    request_names()  # raises an error if the package with the schemas is missing
    if (server_cert is None) is not (server_key is None):
        raise InvalidOption("--tls-cert and --tls-key go together", hint="Give both, or neither.")
    shown = None if advertise is None else _gateway_at(advertise, "--advertise")
    others = [_gateway_at(each, "--peers") for each in peers.split(",") if each]
    is_over = threading.Event()
    if until_eof:
        threading.Thread(target=_await_eof, args=(is_over,), daemon=True).start()
    with suppress(Unauthenticated), connection(bootstrap, path):
        pass  # it raises an error if no broker answers
    with ExitStack() as ended:
        users = ClusterUsers(connector(*where(bootstrap, path), access()), needs_login=sasl)
        ended.callback(users.close)
        if not sasl:
            users.nobody()
        bound = listening_at(listen, "--listen")
        ended.callback(bound.close)
        host, port = bound.getsockname()[:2]
        if shown is None and is_wildcard(host):
            raise InvalidOption(
                f"{listen} is no address that clients can connect to",
                hint="Give the address of this host with --advertise.",
                option="--advertise",
            )
        if sasl and server_cert is None and not ip_address(host).is_loopback:
            raise InvalidOption(
                "passwords and tokens would cross the network in plain text",
                hint="Give --tls-cert and --tls-key, or listen on 127.0.0.1.",
                option="--sasl",
            )
        tls = None if server_cert is None else tls_context(server_cert, server_key)
        own = shown or GatewayAddress(host, port)
        gateways = Gateways(own, others, has_tls=tls is not None)
        gateway = KafkaGateway(users, bound, gateways, tls)
        ended.callback(gateway.close)
        if metrics_listen:
            scraped = listening_at(metrics_listen, "--metrics-listen")
            ended.callback(scraped.close)
            ended.callback(serve_counts(scraped, gateway.counts, lambda: None))
            note(f"metrics and health are shown at http://{joined(*scraped.getsockname()[:2])}/")
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: is_over.set())
        print(f"{READY}{joined(host, port)}", flush=True)
        is_over.wait()


def _await_eof(is_over: threading.Event) -> None:
    while os.read(_STDIN, 1 << 12):  # a lock of sys.stdin would abort the end of the process
        pass
    is_over.set()


def _gateway_at(text: str, option: str) -> GatewayAddress:
    from spark_stream.kafka.peers import GatewayAddress

    try:
        return GatewayAddress.parse(text)
    except ValueError as error:
        raise InvalidOption(str(error), hint="Give HOST:PORT.", option=option) from None
