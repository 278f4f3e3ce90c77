"""TLS contexts from PEM files, for clients and for brokers.

A broker reads its files again when they change, so certificates rotate without a restart. Errors of
both sides name the invalid file, and never its content.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from spark_stream.errors import InvalidOption, IsologError
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

_PEM: Final = "-----BEGIN"
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files: a certificate (with its chain), its key, and the authorities to trust.

    The key may be in the file of the certificate.
    """

    setting: ClassVar = "tls"
    """The group's name in errors."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of the given files."""
        return [each for each in (self.cert, self.key, self.ca) if each is not None]

    def absolute(self) -> Self:
        """Return the same settings with absolute paths."""
        given = {name: getattr(self, name) for name in ("cert", "key", "ca")}
        absolute = {name: path and str(Path(path).absolute()) for name, path in given.items()}
        return replace(self, **absolute)

    def wrong(self, name: str, problem: str) -> InvalidOption:
        """Return the error about one of the files."""
        return InvalidOption(f"{self.setting}.{name}: {problem}", option=f"{self.setting}.{name}")


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a client's context. Without ``ca`` it trusts the system's authorities.

    Raises:
        InvalidOption: A file cannot be read or used. ``option`` names it.
    """
    _check_paths(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is None:
        context.load_default_certs()
    _load(context, files)
    return context


def server_context(
    files: TlsFiles, least_version: str = "1.2", *, requires_client: bool = False
) -> ssl.SSLContext:
    """Return the context with which a broker accepts connections.

    With ``ca`` clients may show a certificate from these authorities. With ``requires_client`` they
    must.

    Raises: as :func:`client_context`.
    """
    _check_paths(files)
    if files.cert is None:
        raise files.wrong("cert", "a broker's TLS needs a certificate")
    if requires_client and files.ca is None:
        raise files.wrong("ca", "name the authorities that issue the clients' certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[least_version]
    _load(context, files)
    if files.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if requires_client else ssl.CERT_OPTIONAL
    return context


def _check_paths(files: TlsFiles) -> None:
    for name in ("cert", "key", "ca"):
        path = getattr(files, name)
        if path is None:
            continue
        if _PEM in path:
            raise files.wrong(name, "give the path of a file, not its text")
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise files.wrong(name, f"{path}: {error.strerror}") from None
    if files.key is not None and files.cert is None:
        raise files.wrong("cert", "a key is given without its certificate")


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError:
            raise files.wrong("ca", f"{files.ca} has no certificate in PEM format") from None
    if files.cert is None:
        return

    def ask_nobody() -> str:
        raise files.wrong("key", "the key is encrypted: give one without a passphrase")

    try:
        context.load_cert_chain(files.cert, files.key, ask_nobody)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{files.key or files.cert} is not the key of the certificate"
        elif files.key is None:
            problem = f"{files.cert} has no certificate with its key in PEM format"
        else:
            problem = f"{files.cert} has no certificate, or {files.key} no key, in PEM format"
        raise files.wrong("cert", problem) from None


class RotatingContext:
    """A context that is made again when its files change.

    ``make`` reads them. ``check`` is called with a later context before it is used, and raises if
    other brokers would refuse it.
    """

    def __init__(
        self,
        files: Sequence[str],
        make: Callable[[], ssl.SSLContext],
        check: Callable[[ssl.SSLContext], None] | None = None,
    ) -> None:
        """Make the first context. Exceptions of ``make`` are raised."""
        self._files = tuple(files)
        self._make = make
        self._check = check
        self._complaint = ""
        self._stamps = self._look()
        self._context = make()

    def current(self) -> ssl.SSLContext:
        """Return the context for new connections."""
        return self._context

    def refresh(self) -> bool:
        """Read the files again if they changed. Return whether there is a new context.

        If the files cannot be used, this is logged once, and the context does not change.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            fresh = self._make()
            if self._check is not None:
                self._check(fresh)
        except (IsologError, OSError) as error:  # a file may be replaced at this moment
            if self._complaint != str(error):
                self._complaint = str(error)
                logger.error("TLS files cannot be used; the previous ones stay in use: %s", error)
            self._stamps = []
            return False
        self._context, self._complaint = fresh, ""
        logger.info("new TLS files are in use: %s", ", ".join(self._files))
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(each) for each in self._files]


def _stamp(path: str) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def certificate_names(connected: ssl.SSLSocket) -> tuple[str, ...]:
    """Return the names in the certificate of the other side, the first one first.

    They are its DNS names, or else its common name, or empty without a certificate. A name of
    another kind, such as an e-mail address, is the name of neither a host nor a principal.
    """
    return _names_in(connected.getpeercert() or {})


def _names_in(found: dict[str, Any]) -> tuple[str, ...]:
    dns = [each for each in found.get("subjectAltName", ()) if each[0] == "DNS"]
    common = [each for part in found.get("subject", ()) for each in part if each[0] == "commonName"]
    return tuple(str(name) for _, name in dns or common if name not in ("", "*"))


def shown_names(files: TlsFiles, server: ssl.SSLContext) -> tuple[str, ...]:
    """Return the names that a server with this context sees in our own certificate.

    Both sides of the connection are here, in memory.

    Raises:
        OSError: the server would refuse the certificate.
    """
    assert files.cert is not None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.load_cert_chain(files.cert, files.key)
    _, theirs = _connected_in_memory(client, server)
    return _names_in(theirs.getpeercert() or {})


def check_in_time(files: TlsFiles) -> None:
    """Check that a server's certificate is valid at this moment, from any authority.

    Raises:
        InvalidOption: The certificate has expired, or is not valid yet, or is not for servers.
    """
    assert files.cert is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    shown = _connected_in_memory(client, server)[0].getpeercert(binary_form=True)
    assert shown is not None
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=shown)
    try:
        _connected_in_memory(trusting, server)
    except ssl.SSLCertVerificationError as error:
        raise files.wrong("cert", f"{files.cert}: {error.verify_message}") from None


def _connected_in_memory(
    client: ssl.SSLContext, server: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Connect two contexts in memory. Return the client's side and the server's."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there)
    theirs = server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return ours, theirs


def reason_of(error: OSError) -> tuple[str, str]:
    """Return the problem of a TLS connection, and the remedy, for a client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = error.verify_message or "it cannot be verified"
        return f"the broker's certificate is refused: {problem}", _advice(problem)
    reason = getattr(error, "reason", None) or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return (
            "the server at this address does not use TLS",
            "Leave the tls options out, or connect to the broker's TLS address.",
        )
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            "the broker requires a client certificate",
            "Give tls.cert and tls.key, issued by an authority that the broker trusts.",
        )
    if "ALERT" in reason:
        what = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return (
            f"the broker refused the TLS connection: {what}",
            "Check that tls.cert is valid and issued by an authority that the broker trusts.",
        )
    return f"no TLS connection: {error}", "Look into the broker's log file."


def _advice(problem: str) -> str:
    if "expired" in problem:
        return "Renew the broker's certificate; it reads new files without a restart."
    if "self" in problem or "issuer" in problem:
        return "Give tls.ca: the file of the authority that issued the broker's certificate."
    if "ostname" in problem or "IP address" in problem:
        return "Connect by a name that is in the certificate, or issue one that has this name."
    return "Check tls.ca and the broker's certificate."
