"""A server with the calls of S3, with faults: moto behind a WSGI application of our own."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Faults:
    """The share of requests with each fault."""

    refused: float = 0.0
    """Answered with 503, without an effect."""
    lost: float = 0.0
    """Carried out, and answered with 500."""
    slow_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.count = 0


@dataclass
class ObjectServer:
    """A running server. Its bucket is ``lake``."""

    address: str
    faults: Faults

    def environment(self) -> dict[str, str]:
        """Return the variables of its clients."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Run a server in threads of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *args: Any) -> None:
                """Write no line for a request."""

        inner = DomainDispatcherApplication(create_backend_app)
        found = ObjectServer("", Faults())
        carried_out = threading.Lock()  # moto checks If-None-Match and stores in two steps

        def application(environ: dict[str, Any], start: Any) -> Any:
            faults = found.faults
            time.sleep(faults.slow_s)
            chance = faults.random.random()
            if chance < faults.refused:
                faults.count += 1
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("503 Slow Down", [("Content-Length", "0")])
                return [b""]
            if chance < faults.refused + faults.lost:
                faults.count += 1
                with carried_out:
                    for _ in inner(environ, lambda *_: lambda _: None):
                        pass
                start("500 Internal Server Error", [("Content-Length", "0")])
                return [b""]
            with carried_out:
                return inner(environ, start)

        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
        thread = threading.Thread(target=server.serve_forever, name="object-server")
        thread.start()
        try:
            found.address = f"http://127.0.0.1:{server.server_port}"
            _create_bucket(found.address)
            yield found
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _create_bucket(address: str) -> None:
    from urllib.request import Request, urlopen

    headers = {
        "Host": "s3.amazonaws.com",
        "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request",
    }
    urlopen(Request(f"{address}/lake", method="PUT", headers=headers)).close()
