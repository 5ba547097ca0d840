"""The composition root: routes, and a delivery's path through the stages. Outcome -> status by the profile's table.

ASGI stands only here and in `receive`. Every answer of `/hooks/` carries `Gateway-Delivery`; bodies are empty but for
a provider's handshake. The answer is sent only after the store has answered.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import log, notices
from gateway.admission import Admission
from gateway.admission_route import admission_route
from gateway.configuration import Configuration
from gateway.delivery import Outcome, RawDelivery
from gateway.errors import Rejection, Unavailable
from gateway.events import Event, read
from gateway.keys import Keys
from gateway.match import MAX_CONSIDERED, Considered, Match, match, most_telling
from gateway.overload import LARGE_BYTES, Overload, Overloaded
from gateway.profiles import JwtProof, Profile, Source
from gateway.receive import Vanished, receive_delivery
from gateway.store import Admit, AdmitItem, Admitted, QueueEntry, Store, uuid7
from gateway.structs import Value
from gateway.suspension import SUSPENDED, Suspensions, without_suspended
from gateway.usage import Usage
from gateway.verify import HandshakeAnswer, KeyRing, handshake, unverified_kid, verify
from gateway.watch import Watch

PREFIX = "/hooks/"
Rejected = tuple[tuple[int, str], ...]  # the refused items of a batch: position and reason


class Answer(Value):
    """What became of one delivery, and what its sender is told."""

    outcome: Outcome
    reason: str | None
    status: int
    delivery: str
    considered: tuple[Considered, ...] = ()
    handshake: HandshakeAnswer | None = None
    retry_after_s: int | None = None
    key: str | None = None
    dispatched: bool = False  # something was queued: the dispatcher has work
    recorded: bool = False  # the store wrote the record in the admission step
    rejected: Rejected = ()


@dataclass(slots=True)
class Gateway:
    """One process's parts, swapped whole when a configuration is loaded again."""

    configuration: Configuration
    keys: Keys
    store: Store
    wake: Callable[[str], None] = lambda _source: None  # tells the dispatcher of this process that there is work
    low_on_disk: Callable[[], bool] = lambda: False
    admission: Admission | None = None
    prepare: Callable[[Configuration], Configuration] = lambda loaded: loaded  # what a process adds to what it loads
    overload: Overload = field(default_factory=Overload)
    usage: Usage = field(default_factory=Usage)
    watch: Watch = field(default_factory=Watch)
    suspensions: Suspensions = field(init=False)

    def __post_init__(self) -> None:
        self.suspensions = Suspensions(self.store)


async def accept(raw: RawDelivery, source: Source, gateway: Gateway) -> Answer:
    """Take one delivery through handshake, verify, read, match, project and admit. Raises Rejection or Unavailable."""
    if (early := handshake(raw, source)) is not None:
        return Answer(Outcome.HANDSHAKE, "url-validation", early.status, raw.id, handshake=early)
    index, now = gateway.configuration.index, raw.received_at
    ring, overload = await _ring(raw, source, gateway.keys), gateway.overload
    large = len(raw.body) > LARGE_BYTES
    verified = await overload.off_loop(verify, raw, source, ring, now) if large else verify(raw, source, ring, now)
    gateway.usage.saw(gateway.store, gateway.configuration.settings.sources[source.name], verified)
    wanted_names = index.wanted(source.name)
    if large:
        reading = await overload.off_loop(read, verified, source, wanted_names, now)
    else:
        reading = read(verified, source, wanted_names, now)
    if reading.lifecycle:
        await notices.keep(gateway.store, source.name, reading.lifecycle, now)
    if reading.handshake is not None:
        return Answer(Outcome.HANDSHAKE, "challenge", reading.handshake.status, raw.id, handshake=reading.handshake)
    if reading.test:
        return Answer(Outcome.HANDSHAKE, "provider-test", success(source.profile), raw.id, key=verified.key)
    found = [(event, *match(event, source, index)) for event in reading.events]
    if any([matches for _, matches, _ in found]):  # noqa: C419 (here and below: short lists, cheaper than generators)
        found = without_suspended(found, await gateway.suspensions.current())
    considered = most_telling([c for _, _, each in found for c in each], SUSPENDED)
    wanted = [(event, matches) for event, matches, _ in found if matches]
    if not wanted:
        return _nothing_wanted(raw, source.profile, reading.ignored, reading.rejected, considered, verified.key)
    refuse_on_a_full_disk(gateway)
    await overload.backlog.check(source.name, gateway.store.depth)
    admit = project(raw, wanted, considered, now, reading.rejected)
    # while the store is waited for, the document's memory serves the next delivery: what is still in a cache costs half
    del reading, found, wanted
    admitted = await gateway.store.admit(admit)
    overload.backlog.added(source.name, sum([len(item.entries) for item in admit.items]))
    return _admitted(raw, source.profile, admitted, considered, verified.key)


def refuse_on_a_full_disk(gateway: Gateway) -> None:
    """Raise Unavailable where little disk is left: a store that cannot append would end, and answer nobody."""
    if gateway.low_on_disk():
        raise Unavailable("disk-nearly-full", 60)


async def _ring(raw: RawDelivery, source: Source, keys: Keys) -> KeyRing:
    """The source's key material. A request without a well-formed token needs no key to be refused."""
    if not isinstance(source.profile.proof, JwtProof):
        return await keys.ring(source)
    kid = unverified_kid(raw, source)
    return KeyRing() if kid is None else await keys.ring(source, kid)


def project(
    raw: RawDelivery,
    wanted: list[tuple[Event, tuple[Match, ...]]],
    considered: tuple[Considered, ...],
    now: float,
    rejected: Rejected = (),
) -> Admit:
    """The one atomic step's argument: dedupe keys and projected events. Nothing else of the delivery goes on."""
    items = [
        AdmitItem(event.dedupe, event.dedupe_ttl_s, event.jti, tuple([_entry(match, raw.id) for match in matches]))
        for event, matches in wanted
    ]
    kept = record(raw, Outcome.FORWARDED, None, considered, rejected)
    return Admit(raw.source, raw.id, tuple(items), kept, now)


def _entry(match: Match, delivery: str) -> QueueEntry:
    return QueueEntry(f"{match.enrolled.subscription.digest}:{match.trigger}", match.event.queued(), delivery)


def record(
    raw: RawDelivery,
    outcome: Outcome,
    reason: str | None,
    considered: tuple[Considered, ...],
    rejected: Rejected = (),
) -> str:
    """The delivery record as JSON text: metadata only. `items` names the refused ones of a batch, up to 20."""
    refused = (
        {"items": [{"index": index, "reason": why} for index, why in rejected[:MAX_CONSIDERED]]} if rejected else {}
    )
    return orjson.dumps(
        {
            "id": raw.id,
            "source": raw.source,
            "received_at": round(raw.received_at, 6),
            "outcome": outcome,
            "reason": reason,
            "subscriptions": [
                {"digest": c.digest, "trigger": c.trigger, "matched": c.matched, "test": c.test, "pointer": c.pointer}
                for c in considered
            ],
            **refused,
        },
    ).decode()


def _nothing_wanted(
    raw: RawDelivery,
    profile: Profile,
    ignored: tuple[str, ...],
    rejected: Rejected,
    considered: tuple[Considered, ...],
    key: str,
) -> Answer:
    if rejected and not ignored and not considered:  # a batch whose items all failed: answered as its provider wants
        return Answer(Outcome.REJECTED, rejected[0][1], success(profile), raw.id, key=key, rejected=rejected)
    reason = ignored[0] if ignored and not considered else "no-match"
    if any(one.test == SUSPENDED for one in considered):  # it would have been forwarded
        reason = SUSPENDED
    return Answer(Outcome.IGNORED, reason, success(profile), raw.id, considered, key=key, rejected=rejected)


def _admitted(
    raw: RawDelivery,
    profile: Profile,
    admitted: Admitted,
    considered: tuple[Considered, ...],
    key: str,
) -> Answer:
    done = success(profile)
    if any([item.status == "queued" for item in admitted.items]):  # noqa: C419
        return Answer(Outcome.FORWARDED, None, done, raw.id, considered, key=key, dispatched=True, recorded=True)
    duplicate = next((item for item in admitted.items if item.status != "replayed-token"), None)
    if duplicate is None:  # the token was used for another delivery: this one proves nothing
        status = profile.statuses.get("401", 401)
        return Answer(Outcome.REJECTED, "replayed-token", status, raw.id, considered, key=key, recorded=True)
    return Answer(
        Outcome.DUPLICATE, duplicate.status, done, duplicate.first or raw.id, considered, key=key, recorded=True
    )


def success(profile: Profile) -> int:
    """The status of a delivery that was taken, wanted or not."""
    return profile.statuses.get("success", 200)


class Hooks:
    """`POST /hooks/{source}` as a plain ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._limits: dict[str, int] = {}
        self._limits_of: Configuration | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that vanished gets none."""
        name, delivery = scope["path"][len(PREFIX) :], uuid7()
        source = self.gateway.configuration.sources.get(name)
        if source is None:
            await answer(send, 404, delivery, close=True)
        elif scope["method"] != "POST":
            await answer(send, 405, delivery, ((b"allow", b"POST"),), close=True)
        else:
            await self._take(scope, receive, send, source, delivery)

    async def _take(self, scope: Scope, receive: Receive, send: Send, source: Source, delivery: str) -> None:
        raw: RawDelivery | None = None
        began, gateway = time.time(), self.gateway
        try:
            with gateway.overload.slot(source.name, scope) as slot:
                raw = await receive_delivery(
                    scope,
                    receive,
                    delivery=delivery,
                    source=source.name,
                    limit_bytes=self._limit_bytes(source),
                    deadline_s=gateway.configuration.settings.server.body_deadline_s,
                    charge=slot.charge,
                )
                result = await accept(raw, source, gateway)
                slot.judge(proven=bool(result.key), refused=result.outcome is Outcome.REJECTED)
        except Vanished:
            log.event("client-vanished", source=source.name, delivery=delivery)
            return
        except Rejection as error:
            status = source.profile.statuses.get(str(error.status), error.status) if raw is not None else error.status
            result = Answer(Outcome.REJECTED, error.reason, status, delivery)
        except Overloaded as error:
            status = source.profile.statuses.get(str(error.status), error.status)
            result = Answer(Outcome.UNAVAILABLE, error.reason, status, delivery, retry_after_s=error.retry_after_s)
        except Unavailable as error:
            result = Answer(Outcome.UNAVAILABLE, error.reason, 503, delivery, retry_after_s=error.retry_after_s)
        except Exception:  # noqa: BLE001 (a bug: told in the log, and retriable, since some providers give up after one 500)
            log.LOGGER.exception("delivery-bug", extra={"event": "delivery-bug", "delivery": delivery})
            result = Answer(Outcome.UNAVAILABLE, "bug", 503, delivery, retry_after_s=60)
        if result.dispatched:
            gateway.wake(source.name)
        await self._note(raw or RawDelivery(delivery, source.name, began, (), b"", b""), result)
        headers = _headers(result) if result.handshake is not None or result.retry_after_s is not None else ()
        await answer(send, result.status, result.delivery, headers, _body(result), close=raw is None)

    def _limit_bytes(self, source: Source) -> int:
        configuration = self.gateway.configuration
        if configuration is not self._limits_of:
            self._limits_of, self._limits = configuration, _body_limits(configuration)
        return self._limits[source.name]

    async def _note(self, raw: RawDelivery, result: Answer) -> None:
        level = logging.WARNING if result.outcome in {Outcome.REJECTED, Outcome.UNAVAILABLE} else logging.INFO
        matched = [c for c in result.considered if c.matched]
        log.event(
            "delivery",
            level,
            source=raw.source,
            delivery=raw.id,
            outcome=result.outcome,
            reason=result.reason,
            status=result.status,
            key=result.key,
            first=result.delivery if result.delivery != raw.id else None,
            matched=[f"{c.digest[:19]}:{c.trigger}" for c in matched] or None,
        )
        self.gateway.watch.delivery(
            raw.source,
            raw.id,
            result.outcome,
            result.reason,
            key=result.key,
            triggers=[c.trigger for c in matched],
            began=raw.received_at,
            status=result.status,
        )
        if not result.recorded:
            kept = record(raw, result.outcome, result.reason, result.considered, result.rejected)
            await self.gateway.store.record(raw.source, kept)


def _body_limits(configuration: Configuration) -> dict[str, int]:
    """The smallest of the limits that a source's bodies have: the server's, its profile's, its own."""
    settings = configuration.settings
    limits = {
        name: (
            settings.server.body_limit_bytes,
            source.profile.body_limit_bytes,
            settings.sources[name].body_limit_bytes,
        )
        for name, source in configuration.sources.items()
    }
    return {name: min(limit for limit in listed if limit is not None) for name, listed in limits.items()}


def _headers(result: Answer) -> tuple[tuple[bytes, bytes], ...]:
    headers: list[tuple[bytes, bytes]] = []
    if result.retry_after_s is not None:
        headers.append((b"retry-after", str(result.retry_after_s).encode()))
    if result.handshake is not None:
        if result.handshake.content_type:
            headers.append((b"content-type", result.handshake.content_type.encode()))
        headers.append((b"x-content-type-options", b"nosniff"))  # a reflected challenge must never run in a browser
        headers += [(k.encode(), v.encode()) for k, v in result.handshake.headers]
    return tuple(headers)


def _body(result: Answer) -> bytes:
    return result.handshake.body if result.handshake is not None else b""


async def answer(
    send: Send,
    status: int,
    delivery: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    body: bytes = b"",
    *,
    close: bool = False,
) -> None:
    """Send one whole answer. `close` ends the connection, for a request whose body was not read to its end."""
    pairs = [(b"content-length", b"%d" % len(body)), (b"gateway-delivery", delivery.encode()), *headers]
    if close:
        pairs.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def public_app(gateway: Gateway) -> ASGIApp:
    """What providers (and admission) reach. Deliveries pass no router or middleware: they are the hot path."""
    hooks = Hooks(gateway)
    routed = Starlette(
        routes=[admission_route(lambda: gateway.admission, gateway.watch.admission), *health_routes(gateway)]
    )
    routed.router.redirect_slashes = False  # a redirect would repeat the sender's own Host
    others = gateway.overload.guard(routed, "/admission")

    async def public(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.startswith(PREFIX):
            await hooks(scope, receive, send)
        else:
            await others(scope, receive, send)

    return public


def health_routes(gateway: Gateway) -> list[Route]:
    """`/healthz`: the process lives. `/readyz`: it can take a delivery, so its store answers."""

    async def healthz(_request: Request) -> Response:
        return Response(status_code=200)

    async def readyz(_request: Request) -> Response:
        try:
            await gateway.store.ping()
            refuse_on_a_full_disk(gateway)
        except Unavailable as error:
            return Response(status_code=503, headers={"retry-after": str(error.retry_after_s)})
        return Response(status_code=200)

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
