"""A REST catalog of Iceberg with faults: the calls of a worker, over a catalog in SQLite."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

STATES = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


@dataclass
class RestCatalog:
    """A running server.

    ``refused``: the share of commits that are answered with 503, without an effect. ``lost``: of
    those that are carried out and answered with 502. ``repeated``: of those that a proxy sends
    twice, so that the client gets the second answer.
    """

    tables: SqlCatalog
    address: str = ""
    refused: float = 0.0
    lost: float = 0.0
    repeated: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    faults: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        """Return the state and the content of an answer."""
        match method, path:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.tables.create_namespace(tuple(json.loads(body)["namespace"]))
                return 200, json.loads(body)
            case "GET", ["namespaces", name]:
                return 200, {
                    "namespace": [name],
                    "properties": self.tables.load_namespace_properties(name),
                }
            case "POST", ["namespaces", name, "tables"]:
                asked = CreateTableRequest.model_validate_json(body)
                self.tables.create_table(
                    (name, asked.name),
                    asked.table_schema,
                    asked.location,
                    properties=asked.properties,
                )
                return 200, self.table((name, asked.name))
            case "GET", ["namespaces", name, "tables", table]:
                return 200, self.table((name, table))
            case "POST", ["namespaces", name, "tables", table]:
                return self.commit((name, table), CommitTableRequest.model_validate_json(body))
        return 404, {}

    def table(self, name: tuple[str, ...]) -> Any:
        """Return a table as a client reads it."""
        found = self.tables.load_table(name)
        return {
            "metadata-location": found.metadata_location,
            "metadata": json.loads(found.metadata.model_dump_json()),
            "config": {},
        }

    def commit(self, name: tuple[str, ...], asked: Any) -> tuple[int, Any]:
        """Carry out a commit, with faults."""
        chance = self.random.random()
        self.faults += chance < self.refused + self.repeated or chance > 1 - self.lost
        if chance < self.refused:
            return 503, {}
        for _ in range(2 if self.refused <= chance < self.refused + self.repeated else 1):
            table = self.tables.load_table(name)
            self.tables.commit_table(table, asked.requirements, asked.updates)
        return (502, {}) if chance > 1 - self.lost else (200, self.table(name))


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """Run a server in threads of this process."""
    catalog = RestCatalog(SqlCatalog("rest", uri=f"sqlite:///{folder}/rest.db"))

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0].split("/")[2:]
            try:
                with catalog.lock:
                    state, content = catalog.answer(self.command, path, body)
            except tuple(STATES) as error:
                state = next(STATES[kind] for kind in STATES if isinstance(error, kind))
                kind = type(error).__name__
                content = {"error": {"message": str(error), "type": kind, "code": state}}
            data = json.dumps(content).encode()
            self.send_response(state)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *args: Any) -> None:
            """Write no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    catalog.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield catalog
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
