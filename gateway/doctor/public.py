"""The public address: DNS, TLS, and whether what answers there is our gateway, with its admin side hidden."""

import asyncio
import socket
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gateway.addresses import loopback
from gateway.configuration import Configuration
from gateway.doctor.finding import Finding, Findings

CONNECT_S = 5.0
EXPIRES_SOON_S = 14 * 86_400
QUIET = ("/api/v1/deliveries", "/metrics")


async def public_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """DNS, TLS and whether what answers there is a gateway that knows our sources, with its admin side hidden."""
    url = configuration.settings.server.public_url
    if url is None:
        yield Finding("public URL", "fail", "server.public_url is not set", 'set it: "https://hooks.example.com"')
        return
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot write
        yield Finding(
            "DNS",
            "fail",
            f"{host} does not resolve: {getattr(error, 'strerror', None) or error}",
            "add an A or AAAA record",
        )
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    yield Finding("DNS", "ok", f"{host} is {', '.join(addresses)}")
    if parts.scheme == "https":
        finding = await certificate(host, port)
        yield finding
        if finding.state == "fail":
            return
    elif not loopback(url):
        yield Finding("TLS", "fail", f"{url} is not https", "put a TLS proxy in front: deploy/nginx.conf")
    for name in configuration.sources:
        yield await _hook(session, f"{url}/hooks/{name}", name)
    for path in QUIET:
        finding_or_none = await _hidden(session, url + path)
        if finding_or_none is not None:
            yield finding_or_none


async def certificate(host: str, port: int, context: ssl.SSLContext | None = None) -> Finding:
    """Shake hands as a provider would: a chain that is trusted, the right name, and days left."""
    trusted = context or ssl.create_default_context()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=trusted, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        fix = "install a certificate for this name with its whole chain: providers verify it"
        return Finding("TLS", "fail", f"{host}:{port}: {error.verify_message}", fix)
    except (ssl.SSLError, OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (getattr(error, "strerror", None) or str(error))
        return Finding("TLS", "fail", f"{host}:{port}: {reason}", "start the proxy, open the port, or mend the address")
    peer: dict[str, Any] = writer.get_extra_info("peercert") or {}
    version = writer.get_extra_info("ssl_object").version()
    writer.close()
    left = ssl.cert_time_to_seconds(str(peer["notAfter"])) - time.time()
    detail = f"{version}, the certificate ends in {left / 86_400:.0f} day(s)"
    if left < EXPIRES_SOON_S:
        return Finding("TLS", "warn", detail, "renew it, and check that renewal is automatic")
    return Finding("TLS", "ok", detail)


async def _hook(session: aiohttp.ClientSession, url: str, name: str) -> Finding:
    """A GET on a hook is 405 with our header: it reaches a gateway that knows the source, and touches nothing."""
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as response:
            ours, status = "gateway-delivery" in response.headers, response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Finding("reachability", "fail", f"{url}: {type(error).__name__}", "start the gateway and its proxy")
    if ours and status == 405:
        return Finding("reachability", "ok", f"{url} is ours")
    if ours:
        fix = "reload the running gateway: kill -HUP, or systemctl reload gateway"
        return Finding("reachability", "fail", f"{url}: the running gateway does not know source {name}", fix)
    fix = "something else answers: pass /hooks/ through the proxy to server.bind, unchanged"
    return Finding("reachability", "fail", f"{url}: {status}, not from a gateway", fix)


async def _hidden(session: aiohttp.ClientSession, url: str) -> Finding | None:
    """The admin side must not be reachable from outside."""
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if status != 200:
        return None
    fix = "pass only /hooks/ and /admission through the proxy; keep server.admin_bind on loopback"
    return Finding("admin side", "fail", f"{url} answers 200 on the public side", fix)
