"""``isolog certs create``: the roles that its certificates are valid for."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_stream.cli.app import app

x509 = pytest.importorskip("cryptography.x509")


@pytest.mark.parametrize("flags", [[], ["--client"]])
def test_client_certificate_is_not_valid_for_a_broker(tmp_path: Path, flags: list[str]):
    done = CliRunner().invoke(app, ["certs", "create", str(tmp_path), "one", *flags])
    assert done.exit_code == 0, done.output
    made = x509.load_pem_x509_certificate((tmp_path / "one.pem").read_bytes())
    uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    is_broker = not flags
    assert (x509.oid.ExtendedKeyUsageOID.SERVER_AUTH in uses) is is_broker
    assert ("localhost" in names.get_values_for_type(x509.DNSName)) is is_broker
    assert x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH in uses
