"""What slugs mean, in plain words, and what an operator can do."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.delivery import Outcome
from gateway.health import ORDER, Look
from gateway.structs import Value
from gateway.subscriptions import Enrolled

Step = Literal["received", "proven", "read", "matched", "queued"]
STEPS: tuple[Step, ...] = ("received", "proven", "read", "matched", "queued")


class Words(Value):
    """Where a delivery stopped, why, and what to do about it."""

    step: Step
    why: str
    fix: str = ""


REASONS: dict[str, Words] = {
    "body-framing": Words(
        "received", "Two kinds of framing at once, which proxies read differently.", "Check the proxy."
    ),
    "body-too-large": Words("received", "The body is larger than the limit.", "body_limit_bytes sets it."),
    "body-too-slow": Words(
        "received", "The body did not arrive in time.", "Look at the network between proxy and gateway."
    ),
    "content-encoding": Words("received", "The body is compressed; a signature covers the bytes that were sent."),
    "header-repeated": Words("proven", "A header that proves something came twice.", "A proxy may add a copy."),
    "signature": Words(
        "proven",
        "The signature does not fit: another secret, or a body that was changed on its way.",
        "Compare the secret with the provider's, and check that no proxy rewrites bodies.",
    ),
    "token": Words("proven", "The token is missing, malformed or not signed by the provider's keys."),
    "claims": Words("proven", "The token is genuine, but not for this source.", "Compare the source's identity."),
    "freshness": Words(
        "proven",
        "The signed time is outside the window: a replay, a late delivery, or a wrong clock.",
        "Check this machine's clock; freshness_s sets the window.",
    ),
    "replayed-token": Words("proven", "The token was used for another delivery."),
    "json-syntax": Words("read", "The body is not JSON."),
    "json-duplicate-key": Words("read", "The JSON has a key twice, which two readers can read differently."),
    "json-number": Words("read", "The JSON has a number that cannot be represented."),
    "json-depth": Words("read", "The JSON is nested too deeply."),
    "json-size": Words("read", "The JSON has more parts than any event has."),
    "json-shape": Words("read", "The JSON is of another kind than this provider sends."),
    "event-missing": Words("read", "The event's name is missing."),
    "event-mismatch": Words("read", "The event's name, which is not signed, does not fit the signed body."),
    "handshake": Words("read", "The handshake is malformed."),
    "identity": Words(
        "read",
        "Genuine, but from another tenant than this source is registered for.",
        "Compare the source's identity with the provider's settings.",
    ),
    "delivery-id-missing": Words("read", "The delivery id is missing, so a repeat could not be told."),
    "delivery-id-invalid": Words("read", "The delivery id is malformed or contradicts itself."),
    "rich-notification": Words("read", "The notification carries encrypted content, which is not taken."),
    "client-state": Words("proven", "An item's client state is not one of the source's secrets."),
    "undeclared-event": Words("read", "No enrolled subscription of this source wants this kind of event."),
    "notice": Words("read", "A notice of the provider, not an event."),
    "own-event": Words("read", "Caused by our own App or by an id in the source's self: it would start a loop."),
    "no-match": Words(
        "matched", "Genuine, but no subscription matches.", "The first test that was not true is named with each below."
    ),
    "suspended": Words(
        "matched", "Every subscription that matches is suspended.", "gateway subscriptions says why, and what to do."
    ),
    "rollover": Words("queued", "Carried over from a dispatch whose subscription was superseded."),
    "replay": Words("queued", "An operator's replay of an earlier delivery."),
    "duplicate": Words("queued", "The same delivery came before; nothing is queued twice."),
    "replayed-body": Words("queued", "The same bytes came before under another id; nothing is queued twice."),
    "url-validation": Words("proven", "The provider's check of the address, which proves nothing and changes nothing."),
    "challenge": Words("read", "The provider's handshake was answered."),
    "provider-test": Words("read", "A test message of the provider; it starts nothing."),
}

TESTS: dict[str, str] = {
    "event": "another kind of event",
    "grant": "the scope value is not granted",
    "match": "an exact value differs",
    "types": "a value is missing or of another type",
    "variants": "no or more than one payload shape applies",
    "resources": "the scope value is not granted",
    "filters": "a filter that the workflow set does not hold",
    "url": "the provider's URL disagrees with the built one",
    "envelope": "it would make no valid envelope",
    "suspended": "the subscription was suspended",
}

DISPATCH: dict[str, str] = {
    "queued": "waits for its turn",
    "asked": "waits for an operator's answer",
    "sending": "was sent; the answer is not known yet",
    "sent": "GitHub took it",
    "dead": "a dead letter",
    "discarded": "given up by an operator",
    "superseded": "went on under the subscription that took its place",
}

SETTLED: dict[str, str] = {
    "not-found": "GitHub knows no such repository for this App, or the App may not write to it.",
    "forbidden": "GitHub refuses the App here: it needs contents: write.",
    "unprocessable": "GitHub refused the dispatch as malformed.",
    "repository-moved": "The repository was renamed (upper and lower case count) or moved; a redirect is never followed.",
    "repository-gone": "The repository is gone, or the App is not installed on it.",
    "repository-inaccessible": "The installation does not include this repository.",
    "installation-gone": "The App is no longer installed there.",
    "rate-limited": "GitHub's rate limit; the installation waits.",
    "server-error": "GitHub failed; it is tried again.",
    "timeout": "GitHub did not answer in time; it is tried again.",
    "connection": "GitHub could not be reached; it is tried again.",
    "api-redirect": "GitHub's address redirects: compare github.api_url and what stands before it; it is tried again.",
    "app-unauthorized": "GitHub does not accept the App's key.",
    "expired": "It could not be sent for 24 hours.",
    "revoked": "An operator revoked its subscription.",
    "denied": "An operator or the mode said no.",
    "suspended": "Its subscription is suspended.",
    "asked": "An operator is asked first.",
    "envelope-invalid": "What was queued makes no valid envelope.",
    "workflow-hash": "The default branch has another workflow file than the enrolled one.",
    "workflow-missing": "The default branch has no such workflow file.",
    "workflow-pending": "The default branch does not have the enrolled workflow file yet.",
    "workflow-superseded": "A newer enrollment of this workflow took over; its work is carried over.",
    "repository-replaced": "Another repository has this name now.",
    "opt-in-revoked": "The repository took its consent back.",
}

RUNS: dict[str, str] = {
    "audience": "The run is of another workflow than the enrolled one. Compile and enroll the merged workflow again, then run the job again.",
    "event": "The run was not started by repository_dispatch.",
    "repository": "The enrolled repository has another name now. Compile and enroll it under the new one.",
    "sender": "Somebody else than the App's bot started the run. Compare github.sender_id with the bot's user id.",
    "environment": "The job uses a deployment environment, which the admitting job must not. Use one in a later job.",
    "ref": "The run is not of the default branch.",
    "workflow": "The run is of another workflow file than the enrolled one, or of a reusable one.",
    "workflow-hash": "The run's workflow file is not the enrolled one. Compile and enroll the merged workflow again, then run the job again.",
    "not-enrolled": "The subscription was revoked while the run was judged.",
    "denied": "The enrollment or its source is in mode deny.",
    "suspended": "The subscription is suspended: gateway subscriptions says why, and what to do.",
    "unknown-dispatch": "The dispatch was being asked about, or was denied.",
    "expired": "The run came later than admission.window_s after the dispatch was sent.",
    "replayed-token": "The run's token was used for another dispatch. Run the job again.",
    "contents-unreadable": "The App may not read contents. Grant contents: read, or gateway enroll --attested.",
    "github-timeout": "GitHub did not answer in time. The run asks again; run the job again where it has ended.",
}
AWAY = {"store": "The store was away. The run asks again; run the job again where it has ended."}
OF_INSTALLATIONS = frozenset({"repository-gone", "repository-inaccessible", "installation-gone"})

RESUME: dict[str, str] = {
    "opt-in-revoked": "Once it says yes again, enroll the subscription again.",
    "workflow-hash": "Compile what is there now and enroll that, or put the enrolled file back and enroll again.",
    "workflow-missing": "Put the file back and enroll again, or revoke the subscription.",
    "workflow-pending": "Nothing to do here: it starts with the merge.",
    "workflow-superseded": "Nothing to mend: revoke it when its queue is empty.",
    "repository-moved": "Compile and enroll under the new name, and revoke this one.",
    "repository-gone": "Add it to the installation and enroll again, or revoke the subscription.",
    "repository-replaced": "Revoke the subscription; compile and enroll anew if the other one is meant.",
    "revoked": "Enroll again if it is wanted after all.",
}
"""What to do about a subscription that is not active, by reason."""

UNASKED_S = 60.0  # a run asks within it, unless no runner is free

HEALTH: dict[str, str] = {
    "flowing": "Authentic deliveries arrive.",
    "new": "No authentic delivery yet.",
    "silent": "No authentic delivery for longer than expected.",
    "failing": "Most of what arrives is refused.",
    "stuck": "Events wait for more than 15 minutes.",
    "removed": "No longer configured; what it left is still here.",
}


def words(outcome: str, reason: str | None) -> Words:
    """Say where and why a delivery stopped; one that went through stopped nowhere."""
    if outcome == "unavailable":
        return Words("queued", "We could not take it then; the provider was asked to try again.")
    if reason is None:
        return Words("queued", "")
    return REASONS.get(reason, Words("read", ""))


def about_run(reason: str) -> str:
    """Say why a run was refused, and what to do; what GitHub answered means the same as for a dispatch."""
    return RUNS.get(reason) or SETTLED.get(reason) or AWAY.get(reason.partition("-")[0], "")


def no_run(enrolled: Enrolled | None) -> str:
    """Say where to look when GitHub took a dispatch and no run asked, and why that is; None: it is not enrolled any more."""
    where = f"{enrolled.subscription.repository}'s" if enrolled else "the repository's"
    event_type = enrolled.subscription.event_type if enrolled else "the document's event_type"
    return (
        f"Look at {where} Actions page. Without a run there, most often on.repository_dispatch.types of the workflow lacks {event_type}, "
        "or the workflow is not on the default branch; where one failed, most often its job lacks permissions: id-token: write, "
        "or the action's sender-id is not the bot's user id (gateway doctor prints it)."
    )


def unasked(dispatch: Mapping[str, Any], enrolled: Enrolled | None, now: float) -> str:
    """Say what is likely wrong where a dispatch went out a while ago and no run has asked; else nothing."""
    if dispatch["status"] != "sent" or dispatch["admitted"] or dispatch["refused"] or dispatch["carried"] is not None:
        return ""
    if now - (dispatch["settled_at"] or now) < UNASKED_S:
        return ""
    return f"No run has asked to be admitted. {no_run(enrolled)}"


def about_suspension(reason: str | None) -> str:
    """Say how a subscription stands that was suspended when a delivery came; `reason` is today's, None for active."""
    if reason is None:
        return "it is active again"
    return f"still suspended: {reason}. {standing(reason)}".rstrip()


def standing(reason: str | None, installation: int | None = None) -> str:
    """Say why a subscription is not active, and what to do about it."""
    return " ".join(filter(None, (settled(reason, installation), RESUME.get(reason or "", ""))))


def again(outcome: str, reason: str | None) -> str:
    """Say how an ignored delivery that somebody wants after all comes once more; nothing where it is as it should be."""
    wanted = outcome == Outcome.IGNORED and reason in {"suspended", "no-match", "undeclared-event"}
    return (
        "Its body is not kept, so it cannot be replayed from here: have the provider send it again." if wanted else ""
    )


def settled(reason: str | None, installation: int | None) -> str:
    """Say what a reason of a dispatch or of a subscription means, with the installation where that is what to look at."""
    text = SETTLED.get(reason or "", "")
    return f"{text[:-1]} (installation {installation})." if reason in OF_INSTALLATIONS and installation else text


def about_test(test: str | None) -> str:
    """Say what a test is about; predicates of a declaration speak for themselves."""
    return TESTS.get((test or "").partition(":")[0], "")


def age(seconds: float | None) -> str:
    """A span of time in one unit, as one would say it."""
    if seconds is None:
        return "never"
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit * (2 if name == "d" else 1):
            return f"{int(seconds // unit)} {name}"
    return f"{max(0, int(seconds))} s"


def summary(look: Look) -> str:
    """The state of everything in one sentence, for the headline and for a screen reader when it changes."""
    if look.away is not None:
        return "The store does not answer: nothing is known, and deliveries are answered 503."
    count = {state: sum(one.state == state for one in look.sources) for state in ORDER}
    held = sum(row.state != "active" for row in look.subscriptions)
    wrong = [f"{count[state]} {state}" for state in ORDER[:4] if count[state]]
    for number, one, several in (
        (look.dead, "dead letter", "dead letters"),
        (len(look.asks), "ask", "asks"),
        (held, "subscription not active", "subscriptions not active"),
        (len(look.parked), "installation parked", "installations parked"),
    ):
        if number:
            wrong.append(f"{number} {one if number == 1 else several}")
    if wrong:
        return "Needs a look: " + ", ".join(wrong) + "."
    if not count["flowing"]:
        return "Nothing has arrived yet." if look.sources else "No source is configured."
    return "Events flow." if not count["new"] else f"Events flow; {count['new']} without a delivery yet."


def steps(row: Mapping[str, Any], told: Words) -> list[tuple[str, str]]:
    """The stages of a delivery, each `done`, `stopped` or `not reached`."""
    if row["outcome"] == Outcome.FORWARDED:
        return [*((step, "done") for step in STEPS), *_sent(row["dispatches"])]
    stop = STEPS.index(told.step)
    if row["outcome"] == Outcome.HANDSHAKE:  # answered there: it was never to go on
        return [(step, "done" if place <= stop else "not reached") for place, step in enumerate(STEPS)]
    states = ("done", "stopped", "not reached")
    return [(step, states[(place >= stop) + (place > stop)]) for place, step in enumerate(STEPS)]


def _sent(dispatches: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What became of a delivery's dispatches, the worst of them first."""
    if not dispatches:
        return [("sent", "not yet"), ("admitted", "not yet")]
    dispatches = [one for one in dispatches if one["carried"] is None]
    if not dispatches:
        return [("sent", "carried over"), ("admitted", "carried over")]
    given_up = any(one["status"] in {"dead", "discarded"} for one in dispatches)
    sent = all(one["status"] == "sent" or one["admitted"] for one in dispatches)
    without = [one for one in dispatches if not one["admitted"]]
    refused = any(one["refused"] for one in without)
    return [
        ("sent", "stopped" if given_up else "done" if sent else "not yet"),
        ("admitted", "refused" if refused else "not yet" if without else "done"),
    ]


def utc(at: float | None) -> str:
    """A whole time, for machines and for hovering."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def short(digest: str) -> str:
    """The part of a digest that tells it from others."""
    return digest.removeprefix("sha256:")[:12]
