"""What an operator may write for an address: URLs of services, what to bind, where the store is. ValueError says what is wrong.

No message shows the address itself: it may hold a password.
"""

import ipaddress
import re
from urllib.parse import SplitResult, parse_qs, urlsplit

# https://www.rfc-editor.org/rfc/rfc1123#page-13; a last label of digits alone would be a mistyped IPv4 address
HOST = re.compile(
    r"(?=.{1,253}\Z)(?!.*(?:^|\.)[0-9]+\.?\Z)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.|\Z))+"
)
STORES = ("redis", "rediss", "redis+sentinel", "redis+cluster", "unix")


def loopback(url: str) -> bool:
    """Whether the URL's host is a loopback address or `localhost`."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Whether the text is an IP address or can be a name in DNS."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST.fullmatch(text) is not None
    return True


def check_https(url: str) -> str:
    """Return the URL without a trailing slash; plain http is accepted for loopback alone, where a double stands in."""
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("must be an https URL without user, query or fragment")
    if not is_host(parts.hostname):
        raise ValueError("has no valid host name")
    if parts.scheme == "http" and not loopback(url):
        raise ValueError("must be https: plain http is for loopback addresses alone")
    return url.rstrip("/")


def _split(url: str) -> SplitResult:
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError("has a space or a control character in it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("has a host or a port that is none: ports go from 1 to 65535") from None
    if port == 0:
        raise ValueError("has the port 0: ports go from 1 to 65535")
    return parts


def check_bind(value: str) -> str:
    """Return HOST:PORT; an IPv6 address stands in brackets, port 0 takes a free one."""
    host, _, port = value.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("must be HOST:PORT, with a port up to 65535")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not is_host(inner) or (":" in inner) != host.startswith("["):
        raise ValueError('must be HOST:PORT with an address of this machine, such as "0.0.0.0:8080" or "[::]:8080"')
    return value


def check_networks(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return addresses and CIDR ranges; every one that is neither is named."""
    bad = [f"entry {place}: {why}" for place, value in enumerate(values) if (why := _network_problem(value))]
    if bad:
        raise ValueError("; ".join(bad))
    return values


def _network_problem(value: str) -> str | None:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        try:
            network = ipaddress.ip_network(value, strict=False)
        except ValueError:
            return "is no address and no CIDR range, such as 10.0.0.0/8"
        return f"has bits set beyond its prefix: write {network}"
    return None


def check_store(url: str) -> str:
    """Return the store's address. What a client would only find when it connects is looked at here."""
    scheme = url.partition("://")[0]
    if scheme not in STORES or (scheme == "unix" and not url.startswith("unix:///")):
        raise ValueError("url must be redis://, rediss://, unix:///, redis+sentinel:// or redis+cluster://")
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError("url has a space or a control character in it: write a password's as %20")
    netloc, _, path = url.partition("://")[2].partition("?")[0].partition("/")
    hosts = netloc.rpartition("@")[2]
    for host in hosts.split(",") if scheme.startswith("redis+") else [hosts]:
        if scheme != "unix":
            _store_host(host)
    query = parse_qs(url.partition("?")[2], keep_blank_values=True)
    name, _, db = path.partition("/") if scheme == "redis+sentinel" else ("-", "", path)
    if not name:
        raise ValueError("url has no master name: redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB")
    if scheme != "unix" and db.strip("/") and not db.strip("/").isdecimal():
        raise ValueError("url must end with the database's number, such as /0")
    if scheme == "redis+cluster" and db.strip("/") not in ("", "0"):
        raise ValueError("url must be without a database: a Cluster has database 0 only")
    if any(not number.isdecimal() for number in query.get("db", ())):
        raise ValueError("url has a db that is no number")
    return url


def _store_host(text: str) -> None:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("url has a host or a port that is none: ports go from 1 to 65535") from None
    if not host or not is_host(host):
        raise ValueError("url has no valid host name: redis://HOST:PORT/DB")
    if port == 0:
        raise ValueError("url has the port 0: ports go from 1 to 65535")
