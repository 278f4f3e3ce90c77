"""Certificates that change while a broker runs, without connections."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from isolog.errors import InvalidOption
from spark_stream.transport.tls import RotatingContext


@pytest.mark.rule("the reload of TLS files", "transport/tls.py")
def test_corrected_file_is_read_even_if_its_time_and_size_are_unchanged(
    tmp_path: Path,
) -> None:
    """A coarse clock of the file system may give both the same time."""
    file = tmp_path / "cert.pem"
    file.write_text("good")

    def make() -> ssl.SSLContext:
        if file.read_text() == "torn":
            raise InvalidOption("tls.cert: torn")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    rotating = RotatingContext([str(file)], make)
    first = rotating.current()
    assert not rotating.refresh()
    file.write_text("torn")
    os.utime(file, ns=(10**18, 10**18))
    assert not rotating.refresh()
    assert rotating.current() is first
    file.write_text("mend")
    os.utime(file, ns=(10**18, 10**18))
    assert rotating.refresh()
    assert rotating.current() is not first
    assert not rotating.refresh()
