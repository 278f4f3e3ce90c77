"""What each request to the console has to be, and the headers of each answer.

* The ``Host`` is one under which the console is meant to be reached. Otherwise a page of another
  site, whose name suddenly resolves to this machine (DNS rebinding), could read the answers.
* A request that changes something comes from the console's own page: it has a header that no form
  of another site can send, and its ``Origin`` and ``Sec-Fetch-Site``, if there, say so too.
* No answer may be framed, sniffed or kept, and a page runs the console's own scripts only.
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
    """An application of ASGI around another: it refuses what is not meant for the console.

    ``hosts``: the names under which the console is reached, without ports. An address of IP needs
    no name service, so any is accepted if the console listens on all of them (``any_address``).
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], any_address: bool) -> None:
        self._app = app
        self._hosts = {each.lower() for each in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
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
        """Return why a request is refused: status, code, message and hint; None if it is not."""
        host = headers.get("host", "")
        if not self.knows(host):
            return (
                421,
                "WRONG_HOST",
                f"the console is not to be reached as {host!r}",
                "Use the address that it prints, or start it with --allowed-host NAME.",
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
                "the request does not come from the console's own page",
                f"Scripts send the header {OWN_HEADER}: 1.",
            )
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _BODY_MAX:
            return (
                413,
                "TOO_LARGE",
                f"a request has a Content-Length of at most {_BODY_MAX} bytes",
                "Send less.",
            )
        return None

    def knows(self, host: str) -> bool:
        """Return whether the console is meant to be reached under this host, with any port."""
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
    """Return whether a name is an address of IP."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
