"""`Admission`: an OIDC proof becomes one admitted run of one dispatch, and everything else is refused.

The rule of this module: whoever is admitted has passed every numbered check, in `oidc` (1 to 14) and here (15 to 18); what
cannot be decided now is Unavailable, never yes. The token is judged before the dispatch is looked up.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway import log, oidc, strict_json
from gateway.destination import Destinations, repository_id
from gateway.errors import Rejection, Unavailable
from gateway.oidc import Expected, Proven
from gateway.schemes import jwt
from gateway.settings import AdmissionSettings
from gateway.store import Store
from gateway.structs import Value
from gateway.subscriptions import Enrolled

MAX_BODY_BYTES: Final = 4096
GITHUB_S: Final = 6.0
_DISPATCH: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# What the store says of a claim, as the caller is told.
REFUSALS: Final = {
    "unknown": Rejection("unknown-dispatch", 404),
    "expired": Rejection("expired", 410),
    "taken": Rejection("taken", 409),
    "jti-used": Rejection("replayed-token", 401),
}


class Run(Value):
    """An admitted run: how many events its payload has, and the digest by which it checks that payload."""

    run_id: str
    events: int
    envelope_digest: str
    dispatch: str = ""
    delivery: str | None = None  # the first of the dispatch: its trace

    def to_json(self) -> dict[str, Any]:
        """Return the answer's body."""
        return {
            "admitted": True,
            "run_id": self.run_id,
            "events": self.events,
            "envelope_digest": self.envelope_digest,
        }


class KeySource(Protocol):
    """Where the issuer's keys come from."""

    async def keys(self, url: str, kid: str | None) -> Mapping[str, RSAPublicKey]:
        """Return the keys by id; raises Unavailable."""
        ...


async def _nobody(_: Enrolled, __: str) -> None:
    """Nobody looks after a refused admission."""


class Admission:
    """Judges runs. Safe for concurrent use.

    `disagreed` is told where a run of the enrolled repository itself was refused: the enrollment and the dispatch.
    """

    def __init__(
        self,
        *,
        settings: Callable[[], AdmissionSettings],
        sender_id: int,
        enrolled: Callable[[str], Enrolled | None],
        store: Store,
        destinations: Destinations,
        jwks: KeySource,
        disagreed: Callable[[Enrolled, str], Awaitable[None]] = _nobody,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._sender_id, self._enrolled = settings, sender_id, enrolled
        self._store, self._destinations, self._jwks = store, destinations, jwks
        self._disagreed, self._clock = disagreed, clock
        self._looking: set[asyncio.Task[None]] = set()

    async def admit(self, authorization: bytes | None, body: bytes) -> Run:
        """Admit the run that the token of `authorization` proves to the dispatch that `body` names.

        Raises Rejection (401 not proven, 403 not allowed, 404, 409, 410) or Unavailable (503).
        """
        settings = self._settings()
        token = jwt.parse(authorization)
        keys = await self._jwks.keys(settings.jwks_url, oidc.unverified_kid(token))
        proven = oidc.prove(token, keys, settings.issuer, self._clock())
        dispatch, digest = _asked(body)
        enrolled = self._enrolled(digest)
        if enrolled is None:
            raise Rejection("not-enrolled", 403)
        try:
            await self._judge(proven, enrolled, settings)
            return await self._claim(proven, enrolled, dispatch, settings.window_s)
        except (Rejection, Unavailable) as refusal:
            named = dispatch if _DISPATCH.fullmatch(dispatch) else None
            refusal.about = {"dispatch": named, "subscription": digest, "run": proven.run_id}
            if named is not None and _is_ours(proven, enrolled):
                self._follow_up(refusal.reason, enrolled, dispatch, proven.run_id)
            raise

    def _follow_up(self, reason: str, enrolled: Enrolled, dispatch: str, run: str) -> None:
        """Keep the refusal and look at the default branch beside the answer, which waits for neither."""
        digest, now = enrolled.subscription.digest, self._clock()
        self._beside(self._store.refuse_run(dispatch, digest, reason, run, now), digest, dispatch)
        if reason in _DISAGREEMENTS:
            self._beside(self._disagreed(enrolled, dispatch), digest, dispatch)

    def _beside(self, work: Awaitable[object], digest: str, dispatch: str) -> None:
        task = asyncio.create_task(_unheard(work, digest, dispatch))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def settle(self) -> None:
        """Return when nothing is under way beside the answers."""
        while self._looking:
            await asyncio.gather(*self._looking)

    async def _judge(self, proven: Proven, enrolled: Enrolled, settings: AdmissionSettings) -> None:
        subscription, number = enrolled.subscription, repository_id(enrolled)
        if number is None:
            raise Unavailable("repository-id-unknown", 60)
        expected = Expected(
            settings.audience_prefix + subscription.workflow_hash,
            subscription.repository,
            number,
            subscription.workflow,
            self._sender_id,
        )
        oidc.check_run(proven, expected)
        await self._check_standing(subscription.digest)
        try:
            async with asyncio.timeout(GITHUB_S):
                branch = await self._destinations.branch(enrolled, oidc.claimed_branch(proven))
                oidc.check_workflow(proven, expected, branch)
                await self._check_file(proven, enrolled)
        except TimeoutError:
            raise Unavailable("github-timeout") from None
        await self._check_standing(subscription.digest)  # again: GitHub may have taken seconds, and an operator acted

    async def _check_standing(self, digest: str) -> None:
        """Look at what may change at any time.

        15. Still enrolled, and neither denied nor suspended.
        """
        enrolled = self._enrolled(digest)
        if enrolled is None:
            raise Rejection("not-enrolled", 403)
        if enrolled.mode == "deny":
            raise Rejection("denied", 403)
        if digest in await self._store.suspended():
            raise Rejection("suspended", 403)

    async def _check_file(self, proven: Proven, enrolled: Enrolled) -> None:
        """Compare what GitHub runs with what was enrolled.

        16. The file at `workflow_sha` has the enrolled hash; an operator may attest it where the App cannot read it.
        """
        if enrolled.attested:
            return
        if await self._destinations.hash_at(enrolled, proven.workflow_sha) != enrolled.subscription.workflow_hash:
            raise Rejection("workflow-hash", 403)

    async def _claim(self, proven: Proven, enrolled: Enrolled, dispatch: str, window_s: float) -> Run:
        """Claim the dispatch for the run.

        17. The dispatch was sent for this subscription, and is not too old.
        18. The token is used for no other dispatch or run, and no other run has the dispatch.
        """
        if not _DISPATCH.fullmatch(dispatch):
            raise Rejection("unknown-dispatch", 404)
        known = await self._store.dispatch(dispatch)
        now = self._clock()
        digest = enrolled.subscription.digest
        result = await self._store.admit_run(dispatch, digest, proven.run_id, proven.jti, now, window_s)
        if result != "admitted" or known is None or known.envelope_digest is None:
            refusal = REFUSALS.get(result, REFUSALS["unknown"])
            raise Rejection(refusal.reason, refusal.status)
        log.event(
            "admitted",
            dispatch=dispatch,
            subscription=digest,
            run=proven.run_id,
            workflow_sha=proven.workflow_sha,
            attested=enrolled.attested or None,
        )
        first = known.deliveries[0] if known.deliveries else None
        return Run(proven.run_id, known.count, known.envelope_digest, dispatch, first)


# Refusals that a changed repository explains: the default branch is looked at again. `suspended` is that of a run which was
# on its way when another digest took over; what it was sent for goes on under that one.
_DISAGREEMENTS: Final = frozenset(
    {"audience", "repository", "ref", "workflow", "workflow-hash", "repository-moved", "not-found", "suspended"}
)


def _is_ours(proven: Proven, enrolled: Enrolled) -> bool:
    """Whether the run is of the enrolled repository: nobody else's token makes us look."""
    return oidc.number(proven.claims.get("repository_id")) == str(repository_id(enrolled))


def _asked(body: bytes) -> tuple[str, str]:
    """Read `{dispatch, subscription}`, closed. Raises Rejection `request` (400)."""
    try:
        document = strict_json.loads(body)
    except Rejection:
        raise Rejection("request", 400) from None
    match document:
        case {"dispatch": str(dispatch), "subscription": str(subscription)} if len(document) == 2:
            return dispatch, subscription
    raise Rejection("request", 400)


async def _unheard(work: Awaitable[object], digest: str, dispatch: str) -> None:
    """Await what nobody else does, and say where it fails."""
    try:
        await work
    except Unavailable as error:
        log.event("follow-up-failed", logging.WARNING, subscription=digest, dispatch=dispatch, reason=error.reason)
    except Exception:  # noqa: BLE001 (a bug must not stay unseen)
        log.LOGGER.exception("follow-up-bug")
