"""``isolog certs``: certificates from your own authority, for a test or a small cluster."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_stream.cli.options import note
from spark_stream.errors import InvalidOption, Unsupported

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

app = typer.Typer(no_args_is_help=True, help="Make certificates for TLS.")

_AUTHORITY: Final = "ca"
_CLOCKS_DIFFER: Final = timedelta(minutes=5)


@app.command()
def create(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the files go.", show_default=False)
    ],
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="A broker's id, or a client's name.", show_default=False
        ),
    ],
    host: Annotated[
        list[str],
        typer.Option(
            metavar="HOST", help="A name or address that the holder is reached by; may be repeated."
        ),
    ] = ["localhost", "127.0.0.1"],  # noqa: B006  typer does not change it
    client: Annotated[
        bool,
        typer.Option("--client", help="For clients: the holder cannot pose as a broker."),
    ] = False,
    days: Annotated[
        int, typer.Option(min=1, max=36_500, help="For how many days they are valid.")
    ] = 365,
) -> None:
    """Make an authority in DIR, unless there is one, and a certificate for each NAME.

    NAME.pem and NAME-key.pem are for `tls.cert` and `tls.key`, ca.pem is for `tls.ca`. An existing
    certificate is made anew, which renews it. Guard ca-key.pem: its owner can pose as anybody.

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
            hint="Install it: pip install 'isolog[certs]'.",
        ) from None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(directory, days)
    for name in names:
        _issue(directory, authority, name, None if client else host, days)
        note(f"{directory / name}.pem is valid for {days} days")


_Pair = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def _authority(directory: Path, days: int) -> _Pair:
    """Return the directory's authority; make one if there is none."""
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
                f"the authority in {directory} cannot be used: {error}",
                hint=f"It is in {cert_file.name} and {key_file.name}; take an empty directory.",
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidOption(f"{key_file} is not a key that `isolog certs` has made")
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
    """Write a certificate whose first name is ``name``, and its key; for a client without hosts."""
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
    """Write both files, each in one step: a broker may read them at any time."""
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
