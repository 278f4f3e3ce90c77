"""Checks of each request to the console, and the security headers of each answer.

* The ``Host`` is a configured name of the console. Otherwise a page of another site, whose name
  starts to resolve to this machine (DNS rebinding), could read the answers.
* A request with side effects comes from the console's page: it has a header that a form of another
  site cannot send, and its ``Origin`` and ``Sec-Fetch-Site``, if present, match.
* Answers may not be framed, sniffed or cached, and a page runs only the console's scripts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_HEADER: Final = "x-isolog-console"
_SAFE: Final = ("GET", "HEAD")
_BODY_MAX: Final = 64 * 1024
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI middleware that rejects requests for other hosts and from other sites.

    ``hosts``: the names of the console, without ports. IP addresses are not subject to DNS
    rebinding, so any is accepted if the console listens on all addresses (``any_address``).
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], any_address: bool) -> None:
        self._app = app
        self._hosts = {each.lower() for each in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        wrong = self.refusal(scope["method"], Headers(scope=scope))
        if wrong is None:
            await self._app(scope, receive, guarded)
            return
        status, code, message, hint = wrong
        body = {"error": {"code": code, "message": message, "hint": hint}}
        await JSONResponse(body, status)(scope, receive, guarded)

    def refusal(self, method: str, headers: Headers) -> tuple[int, str, str, str] | None:
        """Return the error of a request (status, code, message, hint), None if it is valid."""
        host = headers.get("host", "")
        if not self.accepts(host):
            return (
                421,
                "WRONG_HOST",
                f"{host!r} is not a name of the console",
                "Use the address that the console prints, or start it with --allowed-host NAME.",
            )
        if method in _SAFE:
            return None
        origin = headers.get("origin")
        same = origin is None or origin.partition("://")[2].lower() == host.lower()
        if (
            OWN_HEADER not in headers
            or not same
            or headers.get("sec-fetch-site", "same-origin") != "same-origin"
        ):
            return (
                403,
                "CROSS_SITE",
                "the request does not come from the console's page",
                f"Scripts must send the header {OWN_HEADER}: 1.",
            )
        length = headers.get("content-length", "")
        is_chunked = "transfer-encoding" in headers  # then its length counts for nothing
        if is_chunked or not length.isdecimal() or int(length) > _BODY_MAX:
            return (
                413,
                "TOO_LARGE",
                f"a request needs a Content-Length of at most {_BODY_MAX} bytes",
                "Send a smaller body, with its length.",
            )
        return None

    def accepts(self, host: str) -> bool:
        """Return whether this host, with any port, is a name of the console."""
        name = host_name(host)
        if name in self._hosts:
            return True
        return self._any_address and is_address(name)


def host_name(host: str) -> str:
    """Return the name in ``host`` or ``host:port``, without the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
