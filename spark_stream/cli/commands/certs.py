"""``isolog certs``: certificates of a private authority, for a test or a small cluster."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_stream.cli.options import note
from spark_stream.errors import InvalidOption, Unsupported
from spark_stream.extras import install_hint

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

app = typer.Typer(no_args_is_help=True, help="Create certificates for TLS.")

_AUTHORITY: Final = "ca"
_CLOCKS_DIFFER: Final = timedelta(minutes=5)


@app.command()
def create(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory for the files.", show_default=False)
    ],
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Id of a broker, or name of a client.", show_default=False
        ),
    ],
    host: Annotated[
        list[str],
        typer.Option(metavar="HOST", help="Host name or address of the holder. Repeatable."),
    ] = ["localhost", "127.0.0.1"],  # noqa: B006  typer does not change it
    client: Annotated[
        bool,
        typer.Option("--client", help="For clients. The certificate is not valid for a broker."),
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Validity in days.")] = 365,
) -> None:
    """Create a certificate for each NAME, and an authority in DIR unless it has one.

    NAME.pem and NAME-key.pem are for `tls.cert` and `tls.key`, ca.pem is for `tls.ca`. An existing
    certificate is renewed. Keep ca-key.pem secret: its owner can impersonate anybody.

    \b
    isolog certs create certs/ 1 2 3 --host broker.example.org
    isolog certs create certs/ etl-job --client --days 30
    """
    for name in names:
        if not name or name == _AUTHORITY or "/" in name or name.startswith("."):
            raise InvalidOption(
                f"{name!r} cannot name a certificate", hint="Take letters, digits, - and _."
            )
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise Unsupported(
            "`isolog certs` needs the package cryptography",
            hint=install_hint("certs"),
        ) from None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(directory, days)
    for name in names:
        _issue(directory, authority, name, None if client else host, days)
        note(f"{directory / name}.pem is valid for {days} days")


_Pair = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def _authority(directory: Path, days: int) -> _Pair:
    """Return the authority in the directory, and create it if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert_file, key_file = directory / f"{_AUTHORITY}.pem", directory / f"{_AUTHORITY}-key.pem"
    if cert_file.exists() or key_file.exists():
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            found = x509.load_pem_x509_certificate(cert_file.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"the authority in {directory} is unusable: {error}",
                hint=f"Use an empty directory, or restore {cert_file.name} and {key_file.name}.",
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidOption(f"{key_file} was not created by `isolog certs`")
        return found, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "isolog's own authority")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=max(days, 3650)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(directory, _AUTHORITY, made, key)
    return made, key


def _issue(
    directory: Path, authority: _Pair, name: str, hosts: list[str] | None, days: int
) -> None:
    """Write a certificate with ``name`` as its first name, and its key. No hosts: for a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    alternative = [x509.DNSName(name), *map(_host_name, hosts or ())]
    uses = [Use.CLIENT_AUTH] if hosts is None else [Use.SERVER_AUTH, Use.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(min(now + timedelta(days=days), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternative), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    _write(directory, name, certificate, key)


def _host_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
) -> None:
    """Write both files, each atomically, because a broker may read them at any time."""
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _put(directory / f"{name}-key.pem", private, 0o600)
    _put(directory / f"{name}.pem", certificate.public_bytes(pem), 0o644)


def _put(path: Path, data: bytes, mode: int) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.replace(path)
