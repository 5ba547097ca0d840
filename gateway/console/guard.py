"""What every request of the admin side must pass: an own `Host` name, and headers that bind what a browser may do.

A page of an attacker whose name is made to resolve to our address (DNS rebinding) sends that name as `Host`. An address
cannot be rebound, so the address that the connection came to is our own name too.
"""

import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def host_name(headers: Headers) -> str | None:
    """The one Host without its port, lower case; None where it is missing, repeated or malformed."""
    values = headers.getlist("host")
    if len(values) != 1:
        return None
    text = values[0].strip().lower()
    name, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "0")
    if not port.isdecimal():
        return None
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    return name if name and ":" not in name else None


class Guard:
    """Refuses a foreign `Host` with 421 before anything else is looked at, and adds the headers to every answer.

    Two framings of one body, which a proxy in front may read otherwise than we do, are 400.
    """

    def __init__(self, app: ASGIApp, own: Callable[[], tuple[str, ...]]) -> None:
        self._app, self._own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = host_name(Headers(scope=scope))
        if name is None or not self._is_own(name, scope):
            body = (
                b"This is not an address of the gateway's admin side. Add it to server.admin_hosts if it should be.\n"
            )
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return

        if {"content-length", "transfer-encoding"} <= set(Headers(scope=scope)):
            await send({"type": "http.response.start", "status": 400, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for key, value in HEADERS.items():
                    headers[key] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, guarded)

    def _is_own(self, name: str, scope: Scope) -> bool:
        if name in LOOPBACK or name in self._own():
            return True
        server = scope.get("server") or ("", 0)
        try:
            return ipaddress.ip_address(name) == ipaddress.ip_address(server[0])
        except ValueError:
            return False


def is_local(scope: Scope) -> bool:
    """Whether a request came over loopback to a loopback name, and no proxy says that it passes on another's."""
    client = scope.get("client") or ("", 0)
    try:
        near = ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
    headers = Headers(scope=scope)
    return near and host_name(headers) in LOOPBACK and not any(name in headers for name in PASSED_ON)
