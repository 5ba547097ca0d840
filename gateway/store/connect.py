"""Store addresses to clients. The client library never retries by itself: its defaults hold one call for 25 s."""

import ssl
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.errors import ConfigError, Problem

CALL_S = 2.0  # one call of the store, connecting and waiting for a connection included
CONNECTIONS = 32
SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, redis+cluster://"


def _options() -> dict[str, Any]:
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": CALL_S,
        "socket_connect_timeout": CALL_S / 2,
        "decode_responses": True,
        "protocol": 2,
    }


def _hosts(text: str, port: int) -> list[tuple[str, int]]:
    """Read `host:port,host:port`; an IPv6 address stands in brackets."""
    hosts = []
    for part in text.split(","):
        one = urlsplit(f"//{part}")
        if not one.hostname:
            raise ValueError(f"no host in {part!r}")
        hosts.append((one.hostname, one.port or port))
    return hosts


def _extra(query: str) -> dict[str, Any]:
    """Read what a sentinel or cluster address may carry beside its hosts."""
    extra = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    unknown = set(extra) - {"ssl_ca_certs", "ssl", "username", "password"}
    if unknown:
        raise ValueError(f"unknown parameter {min(unknown)}")
    tls = extra.pop("ssl", "true" if "ssl_ca_certs" in extra else "false")
    return {**extra, **({"ssl": True} if tls in ("true", "1", "yes") else {})}


def _credentials(userinfo: str) -> dict[str, str]:
    name, _, password = userinfo.partition(":")
    return {key: unquote(value) for key, value in (("username", name), ("password", password)) if value}


def _sentinel(hosts: str, auth: dict[str, str], path: str, query: str) -> Any:
    name, _, db = path.strip("/").partition("/")
    if not name:
        raise ValueError("no master name: redis+sentinel://host:port/NAME/DB")
    options = {**_options(), **_extra(query), **auth}
    quick = {**_options(), "socket_timeout": CALL_S / 4, "socket_connect_timeout": CALL_S / 4}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(hosts, 26379), sentinel_kwargs=quick, **options
    )
    return sentinel.master_for(name, db=int(db or 0))


def _cluster(hosts: str, auth: dict[str, str], path: str, query: str) -> Any:
    if path.strip("/") not in ("", "0"):
        raise ValueError("a cluster has database 0 only")
    nodes = [ClusterNode(host, port) for host, port in _hosts(hosts, 6379)]
    return RedisCluster(startup_nodes=nodes, max_connections=CONNECTIONS, **{**_options(), **_extra(query), **auth})


def build(url: str) -> Any:
    """Make the client of a store address; nothing is connected yet. Raises ValueError."""
    parts = urlsplit(url)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme == "redis+sentinel":
        return _sentinel(hosts, _credentials(userinfo), parts.path, parts.query)
    if parts.scheme == "redis+cluster":
        return _cluster(hosts, _credentials(userinfo), parts.path, parts.query)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"scheme {parts.scheme!r} is none of {SCHEMES}")
    pool = BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=CALL_S, **_options())
    pool.make_connection()  # type: ignore[no-untyped-call]  # nothing connects; an unknown parameter is found now, not by the first call
    return Redis.from_pool(pool)


def client_for(url: str, file: str, key: str = "store.url") -> Any:
    """Make the client of a configured address; a bad one is a ConfigError that never shows its password."""
    try:
        return build(url)
    except (ValueError, TypeError, RedisError, ssl.SSLError, OSError) as error:
        # a parameter of the address becomes an argument of the library's connection
        shown = (
            "it has an unknown parameter" if isinstance(error, TypeError) else str(error).replace(url, "the address")
        )
        raise ConfigError([Problem(file, key, f"not a store address: {shown}", f"use one of {SCHEMES}")]) from None
