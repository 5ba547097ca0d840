"""A house for tests of the destination: a real store, the GitHub double, the OIDC double, and a dispatch that was sent."""

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette

from gateway.admission import Admission, Run
from gateway.admission_route import admission_route
from gateway.destination import Destinations
from gateway.dispatcher import Dispatcher
from gateway.doubles import github, oidc
from gateway.envelope import EnvelopeEvent
from gateway.environment import data_folder
from gateway.github import GitHubApp, open_session
from gateway.keys import Jwks
from gateway.reconcile import Reconciler
from gateway.rollover import Rollover
from gateway.settings import AdmissionSettings
from gateway.store import Admit, AdmitItem, QueueEntry, Store, uuid7
from gateway.structs import replace
from gateway.subscriptions import Enrolled, event_type_for, load_subscription, seal
from tests.valkey import PrivateValkey

APP_ID, INSTALLATION, BOT = 4711, 11, 200_000_001
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
COMMIT = "a" * 40
EXAMPLES = data_folder("subscriptions") / "examples"
URL = "https://linear.app/acme/issue/ENG-42"
SCOPE = {
    "organizations": "11111111-1111-4111-8111-111111111111",
    "teams": "33333333-3333-4333-8333-333333333333",
}


def enrolled_with(text: str, members: Mapping[str, Any] | None = None, **changes: Any) -> Enrolled:
    """The linear example, bound to a workflow file with this text; `members` are other members of its document."""
    document = json.loads((EXAMPLES / "linear-issue-created.json").read_bytes()) | dict(members or {})
    document.pop("digest")
    document["event_type"] = event_type_for(document["repository"], document["workflow"])
    document["workflow_hash"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    subscription = load_subscription(json.dumps(seal(document)).encode(), "test")
    return replace(Enrolled(subscription, "linear-acme", INSTALLATION), **changes)


@dataclass
class House:
    """What a test acts on."""

    valkey: PrivateValkey
    store: Store
    github: github.Running
    oidc: oidc.Running
    app: GitHubApp
    destinations: Destinations
    enrolled: dict[str, Enrolled]
    one: Enrolled
    reconciler: Reconciler
    admission: Admission
    ahead: list[float]
    rollover: Rollover
    another: Callable[[Store], Admission]
    """Another gateway's admission, which shares nothing with the first but the store's server."""

    @property
    def digest(self) -> str:
        return self.one.subscription.digest

    def claims(self, **changes: Any) -> dict[str, Any]:
        """A good run's claims; None takes one away."""
        subscription = self.one.subscription
        made = self.oidc.issuer.claims(
            {
                **oidc.run_claims(
                    repository=subscription.repository,
                    repository_id=subscription.repository_id or 0,
                    workflow=subscription.workflow,
                    workflow_sha=COMMIT,
                    actor_id=BOT,
                ),
                "aud": f"gh-aw-gateway:{subscription.workflow_hash}",
                **changes,
            }
        )
        return {name: value for name, value in made.items() if value is not None}

    def token(self, **changes: Any) -> str:
        return self.oidc.issuer.sign(self.claims(**changes))

    async def admit(self, token: str, dispatch: str, digest: str | None = None) -> Run:
        body = {"dispatch": dispatch, "subscription": digest or self.digest}
        try:
            return await self.admission.admit(f"Bearer {token}".encode(), json.dumps(body).encode())
        finally:
            await self.admission.settle()

    def file(self, text: str | None, ref: str | None = None, path: str | None = None) -> None:
        """Put the workflow (or another file) into the repository."""
        repo = self.github.double.add_repository(self.one.subscription.repository)
        key = (path or self.one.subscription.workflow, ref)
        if text is None:
            repo.contents.pop(key, None)
        else:
            repo.contents[key] = text.encode()

    async def queue(self, *urls: str, one: Enrolled | None = None, scope: Mapping[str, str] | None = None) -> str:
        """Queue events as one admitted delivery would; return the delivery's id."""
        digest, delivery = (one or self.one).subscription.digest, uuid7()
        events = [EnvelopeEvent(url, "issue-created", dict(scope or SCOPE)).queued() for url in urls or (URL,)]
        entries = [QueueEntry(f"{digest}:issue-created", event, delivery) for event in events]
        told: dict[str, Any] = {"source": "linear-acme", "outcome": "forwarded", "reason": None, "subscriptions": []}
        record = json.dumps({"id": delivery, "received_at": time.time(), **told})
        items = tuple(AdmitItem((f"id:{delivery}:{at}",), 60, None, (entry,)) for at, entry in enumerate(entries))
        await self.store.admit(Admit("linear-acme", delivery, items, record, time.time()))
        return delivery

    @asynccontextmanager
    async def dispatching(self, **more: Any) -> AsyncIterator[Dispatcher]:
        dispatcher = Dispatcher(
            store=self.store,
            github=self.app,
            enrolled=self.enrolled.get,
            sources=lambda: ("linear-acme",),
            carry=self.rollover.carry,
            **more,
        )
        task = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            dispatcher.stop()
            await task

    async def sent(self, url: str = URL, scope: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Queue an event, let the dispatcher send it, and return the body that the double received."""
        before = len(self.github.double.dispatches)
        async with self.dispatching():
            await self.queue(url, scope=scope)
            end = time.monotonic() + 10
            while len(self.github.double.dispatches) == before:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        body: dict[str, Any] = self.github.double.dispatches[-1]["body"]
        return body

    async def dispatch(self) -> str:
        body = await self.sent()
        return str(body["client_payload"]["gateway"]["dispatch"])


@asynccontextmanager
async def house(
    valkey: PrivateValkey,
    text: str = "on: repository_dispatch\n",
    *,
    issuer_url: str = "",
    url: str = "",
    wait_replicas: int = 0,
    **changes: Any,
) -> AsyncIterator[House]:
    """Build it on `valkey`, or on the store at `url`; `issuer_url` is what the tokens' issuer calls itself."""
    with valkey.client() as client:
        client.flushall()
    one = enrolled_with(text, **changes)
    enrolled = {one.subscription.digest: one}
    ahead = [0.0]
    async with (
        github.running(
            app_id=APP_ID,
            public_key_pem=PUBLIC,
            installations={INSTALLATION: [one.subscription.repository]},
            bot_id=BOT,
        ) as double,
        oidc.running() as issuer,
        open_session() as session,
    ):
        double.double.add_repository(one.subscription.repository).id = one.subscription.repository_id or 0
        issuer.issuer.url = issuer_url or issuer.address
        store = await Store.open(url or valkey.url, wait_replicas=wait_replicas)
        app = GitHubApp(double.address, APP_ID, PEM, session)
        destinations = Destinations(store, app)
        reconciler = Reconciler(store, destinations, lambda: list(enrolled.values()), reread_s=0.1)
        rollover = Rollover(store, lambda: list(enrolled.values()))

        async def disagreed(refused: Enrolled, dispatch: str) -> None:
            await reconciler.disagreed(refused)
            await rollover.refused(refused, dispatch)

        settings = AdmissionSettings(issuer=issuer.issuer.url, jwks_url=issuer.jwks_url)

        def gateway(store: Store, destinations: Destinations) -> Admission:
            return Admission(
                settings=lambda: settings,
                sender_id=BOT,
                enrolled=enrolled.get,
                store=store,
                destinations=destinations,
                jwks=Jwks(lambda: session),
                disagreed=disagreed,
                clock=lambda: time.time() + ahead[0],
            )

        made = House(
            valkey,
            store,
            double,
            issuer,
            app,
            destinations,
            enrolled,
            one,
            reconciler,
            gateway(store, destinations),
            ahead,
            rollover,
            lambda other: gateway(other, Destinations(other, app)),
        )
        made.file(text)
        try:
            yield made
        finally:
            await store.close()


@asynccontextmanager
async def receiving(home: House) -> AsyncIterator[str]:
    """The public route over a real socket."""
    app = Starlette(routes=[admission_route(lambda: home.admission)])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config, stop = Config(), asyncio.Event()
    config.bind, config.accesslog, config.errorlog = [f"fd://{listener.detach()}"], None, None
    task = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await task
