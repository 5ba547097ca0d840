"""The store: every key and script of the gateway. Import from here; the modules inside are its own affair.

Keys (the prefix of a source is `gw:{source}:`, so that everything of a source shares one cluster slot):

| key | type | holds | bound |
|---|---|---|---|
| `{source}:seen:<dedupe>` | string | first delivery's id | TTL of the item |
| `{source}:jti:<id>` | string | delivery that used the token | TTL: the token's end and 2 minutes |
| `{source}:lane:<lane>` | list | events not sealed | undelivered; gone when empty |
| `{source}:sealed:<lane>` | list | dispatch ids, head in flight | undelivered; gone when empty |
| `{source}:ready` | sorted set | lanes with work by due time | undelivered; gone when empty |
| `{source}:lease:<lane>` | string | lease token | TTL of the lease |
| `{source}:dispatch:<id>` | hash | batch, state, admitted run, or the last one that was refused | none while undelivered, then 7 days; dead 37 days |
| `{source}:dead` | sorted set | dead dispatch ids by time | cap, 30 days |
| `{source}:asks` | sorted set | asked dispatches by the end of their question | undelivered; gone when empty |
| `{source}:notices` | hash | providers' notices not acted on yet | 1,000 fields, 7 days |
| `{source}:used` | hash | last use of each secret, by reference | 400 days |
| `{source}:rec:<class>`, `...:at` | hash, sorted set | delivery records | cap, age |
| `{source}:flow` | hash | counts of the last day, times of the last ones | swept buckets, 180 days |
| `{source}:rec:events`, `rec:dispatches` | hash | projected events and dispatches of recorded deliveries | trimmed with them |
| `gw:dispatch:<id>` | string | source of a dispatch | 38 days |
| `gw:run-jti:<id>` | string | dispatch and run of a token | 1 hour |
| `gw:metrics:<group>`, `...:<worker>` | set, string | metrics pages of one machine's processes | 1 minute |
| `gw:park` | hash | parked installations | TTL: the latest end |
| `gw:sources` | set | sources | 30 days |
| `gw:suspended` | hash | suspended and revoked subscriptions | one field an enrolled one; revoked ones 30 days, longer while enrolled |
| `gw:audit` | stream | operators' actions | about 100,000 entries |
| `gw:modes` | hash | modes other than `auto`, as last seen | one field a subscription |
| `gw:fact:<name>` | string | remembered facts | TTL of the caller |
| `gw:schema` | string | schema version | one value |
| `gw:copied` | string | what `wait_replicas` waits for | 1 minute |
"""

from gateway.store.client import check_durability
from gateway.store.facade import Store
from gateway.store.flow import BUCKET_S, BUCKETS, Flow
from gateway.store.ids import uuid7
from gateway.store.lanes import Lane
from gateway.store.records import cursor
from gateway.store.state import REVOKED
from gateway.store.trail import Ask, Notice
from gateway.store.types import (
    Admit,
    AdmitItem,
    Admitted,
    Batch,
    Depth,
    Dispatch,
    ItemResult,
    Limits,
    Page,
    QueueEntry,
)

__all__ = [
    "BUCKETS",
    "BUCKET_S",
    "REVOKED",
    "Admit",
    "AdmitItem",
    "Admitted",
    "Ask",
    "Batch",
    "Depth",
    "Dispatch",
    "Flow",
    "ItemResult",
    "Lane",
    "Limits",
    "Notice",
    "Page",
    "QueueEntry",
    "Store",
    "check_durability",
    "cursor",
    "uuid7",
]
