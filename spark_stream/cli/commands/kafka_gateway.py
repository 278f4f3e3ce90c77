"""``isolog kafka-gateway``: serve Kafka's protocol."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from spark_stream.cli.options import Bootstrap, LogPath, log
from spark_stream.errors import InvalidOption
from spark_stream.wire.addresses import is_wildcard, joined, split_address

READY = "isolog kafka-gateway ready "


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
) -> None:
    """Serve Kafka's protocol, for producers and consumers of Kafka without a group.

    Clients need no login, and act with the permissions of the gateway. It serves topics with
    Kafka's columns.

    \b
    isolog kafka-gateway --bootstrap localhost:9092
    kcat -b localhost:9192 -t events -C
    """
    from spark_stream.broker.connections import listening_socket
    from spark_stream.kafka.gateway import KafkaGateway
    from spark_stream.kafka.messages.schemas import request_names
    from spark_stream.kafka.metadata import GatewayAddress

    request_names()  # raises an error if the package with the schemas is missing
    shown = None if advertise is None else GatewayAddress(*split_address(advertise))
    is_over = threading.Event()
    with ExitStack() as ended:
        opened = ended.enter_context(log(bootstrap, path))
        bound = listening_socket(listen, "--listen")
        ended.callback(bound.close)
        host, port = bound.getsockname()[:2]
        if shown is None and is_wildcard(host):
            raise InvalidOption(
                f"{listen} is no address that clients can connect to",
                hint="Give the address of this host with --advertise.",
                option="--advertise",
            )
        gateway = KafkaGateway(opened, bound, shown or GatewayAddress(host, port))
        ended.callback(gateway.close)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: is_over.set())
        print(f"{READY}{joined(host, port)}", flush=True)
        is_over.wait()
