"""What no receiver of the contract in Python can leave out, and nothing else: what a goal leaves for all the rest.

argv: PORT URL SECRET ENGINE; the log goes to stderr. The signature over the body, its digest, strict JSON, one shared call of
the store that admits and keeps the record, one log line: each by the product's own parts, on its server, as plain ASGI. No
identity, limits, deadlines, match, canonical URL, envelope, metrics: what is stored stands ready but for its ids.
"""

import asyncio
import gc
import hashlib
import hmac
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway import connections, log, strict_json
from gateway.app import record
from gateway.delivery import Outcome, RawDelivery
from gateway.engines import ENGINES
from gateway.envelope import EnvelopeEvent
from gateway.match import Considered
from gateway.server import listen
from gateway.store import Admit, AdmitItem, QueueEntry, Store, uuid7

PORT, URL, SECRET, ENGINE = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode(), sys.argv[4]
LANE = f"sha256:{'0' * 64}:issue-opened"
SCOPE = {"organizations": "acme", "repositories": "acme/product"}
EVENT = EnvelopeEvent("https://github.com/acme/product/issues/42", "issue-opened", SCOPE).queued()
MATCHED = Considered(LANE.rpartition(":")[0], "issue-opened", matched=True)
RECORD = record(RawDelivery("@", "github-acme", time.time(), (), b"", b""), Outcome.FORWARDED, None, (MATCHED,))


async def serve() -> None:
    """Serve until SIGTERM."""
    store = await Store.open(URL, require=True)

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] != "http":
            return
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        headers = dict(scope["headers"])
        signed = b"sha256=" + hmac.digest(SECRET, body, hashlib.sha256).hex().encode()
        status = 202 if hmac.compare_digest(signed, headers[b"x-hub-signature-256"]) else 401
        if status == 202:
            strict_json.loads(body)
            seen = (headers[b"x-github-delivery"].decode(), hashlib.sha256(body).hexdigest())
            delivery = uuid7()
            item = AdmitItem(seen, 259_200, None, (QueueEntry(LANE, EVENT, delivery),))
            await store.admit(Admit("github-acme", delivery, (item,), RECORD.replace("@", delivery), time.time()))
            log.event("delivery", source="github-acme", delivery=delivery, status=status)
        pairs = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": b""})

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    gc.collect()
    gc.freeze()
    await ENGINES[ENGINE](app, listen(f"127.0.0.1:{PORT}"), stop)


if __name__ == "__main__":
    import uvloop

    log.configure()
    connections.install()
    uvloop.run(serve())
