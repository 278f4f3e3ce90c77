"""The guard refuses requests from other sites and for other host names."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from spark_stream.console.guard import Guard


async def nothing(*_: object) -> None:
    raise AssertionError("the application must not be called")


def refused(method: str = "GET", *, any_address: bool = False, **headers: str) -> str | None:
    """Return the code of the refusal."""
    given = {"host": "127.0.0.1:8080"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    guard = Guard(nothing, ["localhost", "127.0.0.1", "::1", "Console.Example"], any_address)
    found = guard.refusal(method, Headers(given))
    return None if found is None else found[1]


@pytest.mark.rule("host names of the console", "console/guard.py")
@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:8080", None),
        ("127.0.0.1", None),
        ("[::1]:8080", None),
        ("console.example:443", None),
        ("CONSOLE.EXAMPLE", None),
        ("evil.example", "WRONG_HOST"),
        ("localhost.evil.example", "WRONG_HOST"),
        ("10.0.0.7:8080", "WRONG_HOST"),
        ("", "WRONG_HOST"),
        ("[::1", None),
        ("localhost@evil.example", "WRONG_HOST"),
    ],
)
def test_only_allowed_hosts_are_accepted(host, code):
    assert refused(host=host) == code


def test_any_address_accepts_ip_addresses_but_no_other_names():
    assert refused(host="10.0.0.7:8080", any_address=True) is None
    assert refused(host="[fe80::1]:8080", any_address=True) is None
    assert refused(host="evil.example:8080", any_address=True) == "WRONG_HOST"


OWN = {"x_isolog_console": "1", "content_length": "2"}


@pytest.mark.rule("requests that may change the cluster in the console", "console/guard.py")
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (OWN, None),
        (OWN | {"origin": "http://127.0.0.1:8080", "sec_fetch_site": "same-origin"}, None),
        ({"content_length": "2"}, "CROSS_SITE"),
        (OWN | {"origin": "http://evil.example"}, "CROSS_SITE"),
        (OWN | {"origin": "http://127.0.0.1:9999"}, "CROSS_SITE"),
        (OWN | {"origin": "null"}, "CROSS_SITE"),
        (OWN | {"sec_fetch_site": "cross-site"}, "CROSS_SITE"),
        (OWN | {"sec_fetch_site": "same-site"}, "CROSS_SITE"),
        (OWN | {"sec_fetch_site": "none"}, "CROSS_SITE"),
        (OWN | {"content_length": "70000"}, "TOO_LARGE"),
        ({"x_isolog_console": "1"}, "TOO_LARGE"),
        (OWN | {"content_length": "-1"}, "TOO_LARGE"),
        (OWN | {"transfer_encoding": "chunked"}, "TOO_LARGE"),
    ],
)
def test_changes_are_accepted_only_from_the_consoles_page(headers, code):
    assert refused("POST", **headers) == code
    assert refused("DELETE", **headers) == code
