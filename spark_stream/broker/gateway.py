"""The Kafka gateway that a broker starts: a child process, and a thread that watches it.

The gateway is a client of the broker, so its end affects no broker. After an unexpected end it
starts again. It ends when its standard input is closed, which the kernel does when the broker ends,
also by SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from spark_stream.broker.config import BrokerConfig
from spark_stream.errors import InvalidConfig
from spark_stream.extras import install_hint
from spark_stream.loggers import logger_of
from spark_stream.transport.listening import is_local
from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, allocator_settings

logger = logger_of(__name__)

_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_LASTING_S: Final = 60.0
"""The time after which a start counts as successful, so that the next pause is short."""

_END_S: Final = 5.0
_SETTING: Final = "kafka_listen"


def check_gateway(config: BrokerConfig) -> None:
    """Check that a gateway can serve at ``kafka_listen``.

    Raises:
        InvalidConfig: A package is missing, or passwords would cross the network in plain text.
    """
    if find_spec("kafka") is None:
        raise InvalidConfig(
            f"{_SETTING}: the Kafka gateway needs the package kafka-python",
            hint=install_hint("kafka"),
            setting=_SETTING,
        )
    if config.authentication and config.tls.cert is None and not is_local(config.kafka_listen):
        raise InvalidConfig(
            f"{_SETTING}: passwords would cross the network in plain text",
            hint="Give tls.cert and tls.key, or listen on 127.0.0.1.",
            setting=_SETTING,
        )


def gateway_command(config: BrokerConfig, broker: str, listen: str, advertise: str) -> list[str]:
    """Return the command of the gateway.

    Args:
        config: The configuration of the broker.
        broker: The address of the broker for clients.
        listen: The address that the gateway listens on.
        advertise: The address of the gateway for clients.
    """
    words = [sys.executable, "-m", "isolog"]
    tls = config.tls
    if tls.cert is not None:
        ca = config.kafka_ca or config.peer_tls.ca
        words += ["--tls"] if ca is None else ["--tls-ca", ca]
    words += ["kafka-gateway", "--until-eof", "--bootstrap", broker]
    words += ["--listen", listen, "--advertise", advertise]
    if config.kafka_peers:
        words += ["--peers", ",".join(config.kafka_peers)]
    if config.authentication:
        words.append("--sasl")
    if tls.cert is not None:
        words += ["--tls-cert", tls.cert, "--tls-key", tls.key or tls.cert]
    return words


def _environment() -> dict[str, str]:
    """Return the environment of a gateway, without the settings and the memory of the broker.

    Some variables have another meaning for clients, such as ISOLOG_TLS.
    """
    brokers = allocator_settings(MEMORY_BYTES_DEFAULT).keys()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in brokers and (not name.startswith("ISOLOG_") or name == "ISOLOG_PORTABLE")
    }


class GatewayProcess:
    """A gateway in a child process, which runs from construction until :meth:`stop`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="isolog-kafka-gateway", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process, after the appends that it has received."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_END_S)

    def _run(self) -> None:
        pause_s = _PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            ended = self._serve()
            if self._stopping.is_set():
                return
            lasted = time.monotonic() - began > _LASTING_S
            pause_s = _PAUSE_S if lasted else pause_s
            logger.error("the Kafka gateway ended (%s); it starts again in %g s", ended, pause_s)
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _serve(self) -> str:
        """Start the process and wait for its end. Return the reason of the end."""
        try:
            with self._lock:
                if self._stopping.is_set():
                    return "the broker stops"
                process = self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=_environment(),
                    text=True,
                    start_new_session=True,  # a terminal's Ctrl-C reaches the broker alone
                )
        except OSError as error:  # such as without memory
            return str(error)
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                logger.info("the Kafka gateway is process %d: %s", process.pid, line.strip())
        return f"exit code {process.returncode}"
