"""A source's keys as the auditor reads them."""

from collections.abc import Mapping
from typing import Any

from redis import Redis

from gateway.store.client import prefix
from tests.auditor import Dispatched, Snapshot


def take(client: "Redis", source: str) -> Snapshot:
    """Read everything under a source's prefix. Only for a server that nobody writes to meanwhile."""
    start = prefix(source)
    keys = sorted(str(key) for key in client.scan_iter(match=start.replace("[", "\\[") + "*", count=1000))
    asked = client.pipeline(transaction=False)
    for key in keys:
        asked.type(key)
        asked.ttl(key)
    found: list[Any] = asked.execute()
    kinds, ttls = found[0::2], found[1::2]
    read = client.pipeline(transaction=False)
    for key, kind in zip(keys, kinds, strict=True):
        match kind:
            case "string":
                read.get(key)
            case "list":
                read.lrange(key, 0, -1)
            case "hash":
                read.hgetall(key)
            case _:
                read.zrange(key, 0, -1, withscores=True)
    values = [dict(v) if k == "zset" else v for k, v in zip(kinds, read.execute(), strict=True)]
    names = [key.removeprefix(start) for key in keys]
    return Snapshot(dict(zip(names, values, strict=True)), dict(zip(names, ttls, strict=True)))


def batches(snapshot: Snapshot, *statuses: str) -> list[Dispatched]:
    """The batches of a snapshot that have one of these statuses and their events."""
    found = []
    for key, row in snapshot.values.items():
        kind, _, name = key.partition(":")
        if kind == "dispatch" and isinstance(row, Mapping) and row.get("status") in statuses and "events" in row:
            found.append(Dispatched(name, tuple(str(row["events"]).split("\n"))))
    return found


def waiting(snapshot: Snapshot) -> list[str]:
    """The events of a snapshot that are in no batch yet."""
    lanes = [value for key, value in snapshot.values.items() if key.startswith("lane:") and isinstance(value, list)]
    return [str(entry).split("\n", 2)[2] for lane in lanes for entry in lane]
