"""Certificates for tests: an authority, its files, and the certificate of a server."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import trustme

from spark_stream.transport.client import connected
from spark_stream.transport.tls import TlsFiles, client_context

HERE = ("127.0.0.1", "localhost")


class Files:
    """An authority and its certificates in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *names: str, by: trustme.CA | None = None, **how) -> TlsFiles:
        """Write NAME.pem and its key, and replace an earlier pair."""
        made = (by or self.authority).issue_cert(*names, **how)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        made.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        return TlsFiles(str(cert), str(key), self.ca)


def conf_of(files: TlsFiles, door: str = "tls", **more: str) -> str:
    given = {"cert": files.cert, "key": files.key, **more}
    return f"[{door}]\n" + "".join(f'{name} = "{value}"\n' for name, value in given.items())


def serial_of(address: str, ca: str) -> str:
    """Return the serial number of the server's certificate on a new connection."""
    sock = connected(address, time.monotonic() + 20, client_context(TlsFiles(ca=ca)))
    assert isinstance(sock, ssl.SSLSocket)
    with sock:
        return str((sock.getpeercert() or {})["serialNumber"])
