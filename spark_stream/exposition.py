"""The HTTP server of Prometheus's scrapes and of health probes.

It needs prometheus-client, which the extra ``isolog[metrics]`` installs. Each request has a thread,
which ends with it or after a while without a byte from the client.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from spark_stream.errors import InvalidOption
from spark_stream.extras import install_hint
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

_SILENT_S: Final = 10.0
_REQUESTS_MAX: Final = 16
"""At the same time. Each takes a thread."""
_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


def prometheus() -> Any:
    """Import prometheus-client.

    Raises:
        InvalidOption: The package is not installed.
    """
    try:
        import prometheus_client
    except ImportError:
        raise InvalidOption(
            "metrics need prometheus-client, which is not installed",
            hint=install_hint("metrics"),
        ) from None
    return prometheus_client


def series_page(registry: Any) -> Application:
    """Return the page with the series of a registry, in the client's format."""
    client = prometheus()
    app: Application = client.make_wsgi_app(registry)

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        try:
            client.exposition.choose_encoder(request.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):  # prometheus-client would fail with a trace
            start("406 Not Acceptable", [_TEXT])
            return [b"The header Accept names no valid version of a format.\n"]
        return app(request, start)

    return answer


def health_page(problem: Callable[[], str | None]) -> Application:
    """Return the page that answers 200, or 503 with the text of ``problem``."""

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        found = problem()
        start("200 OK" if found is None else "503 Service Unavailable", [_TEXT])
        return [f"{found or 'ok'}\n".encode()]

    return answer


class PageServer:
    """A server of pages by their paths, from construction until :meth:`stop`."""

    def __init__(self, bound: socket.socket, pages: Mapping[str, Application]) -> None:
        """``bound``: a socket that is bound. The server takes it over."""
        host, port = bound.getsockname()[:2]
        self.port = int(port)
        self._pages = pages
        self._server = _Server((host, port), _Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = bound
        self._server.server_name, self._server.server_port = str(host), self.port
        self._server.setup_environ()
        self._server.set_app(self._answer)
        self._server.server_activate()
        threading.Thread(
            target=self._server.serve_forever, name="isolog-metrics", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        page = self._pages.get(request["PATH_INFO"])
        if page is None:
            start("404 Not Found", [_TEXT])
            return [f"There are: {' '.join(self._pages)}\n".encode()]
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [_TEXT, ("Allow", "GET, HEAD")])
            return [b"Only GET and HEAD.\n"]
        return page(request, start)


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each request, up to a limit. Beyond it, connections are closed."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = threading.BoundedSemaphore(_REQUESTS_MAX)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request. A lost client is no failure."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            logger.error("a request for a page failed", exc_info=error)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests: a scrape comes every few seconds."""
