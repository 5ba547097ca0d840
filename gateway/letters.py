"""Dead letters: why a dispatch was given up, whose doing that was, what an operator can do about it, and doing it."""

import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from gateway import audit
from gateway.store import Dispatch, Store
from gateway.structs import Value

REPLAY: Final = "dead-replay"
DISCARD: Final = "dead-discard"
Action = Literal["dead-replay", "dead-discard"]
Cause = Literal["operator", "destination", "github", "gateway"]


class About(Value):
    """`cause` is `operator` where somebody here decided it: no fault, and nothing to mend."""

    cause: Cause
    fix: str


AGAIN: Final = "gateway dead replay"
ABOUT: Final[Mapping[str, About]] = {
    "revoked": About("operator", f"its subscription was revoked; enroll it again and {AGAIN}, or discard"),
    "denied": About("operator", "mode or an operator said no; discard, or change the mode and replay"),
    "ask-expired": About("operator", f"nobody answered in time; {AGAIN} asks anew"),
    "superseded": About(
        "operator", "the workflow that took over does not grant these events; discard, or enroll and replay"
    ),
    "not-found": About(
        "destination", f"check that the App may write to the repository (contents: write), then {AGAIN}"
    ),
    "forbidden": About("destination", f"give the App contents: write at this installation, then {AGAIN}"),
    "installation-gone": About("destination", f"install the App again and enroll with the new number, then {AGAIN}"),
    "repository-inaccessible": About("destination", f"add the repository to the installation, then {AGAIN}"),
    "repository-moved": About(
        "destination", f"compile and enroll under the repository's new name; then {AGAIN} or discard"
    ),
    "gone": About("destination", "the repository is gone or blocked; discard"),
    "http-451": About("destination", "the repository is blocked for legal reasons; discard"),
    "unprocessable": About("github", "GitHub took it for malformed; look at gateway dead show, and report it"),
    "too-large": About("github", "GitHub took it for too large; report it"),
    "expired": About("github", f"GitHub could not be reached for 24 hours; {AGAIN} once it can"),
    "envelope-invalid": About("gateway", "what was queued makes no valid envelope; report it, and discard"),
}
OTHER: Final = About("github", f"GitHub refused it; look at its status and the App, then {AGAIN} or discard")


def about(reason: str | None) -> About:
    """Return what is known of a reason; every refusal of GitHub that has no line of its own shares one."""
    return ABOUT.get(reason or "", OTHER)


class Wanted(Value):
    """Which letters a command is about; what is None is not looked at. A subscription may be cut short. Times are Unix seconds."""

    source: str | None = None
    reason: str | None = None
    subscription: str | None = None
    since: float | None = None
    until: float | None = None

    def __call__(self, letter: Dispatch) -> bool:
        """Tell whether a letter is among them."""
        digest = letter.digest.removeprefix("sha256:")
        at = letter.settled_at or 0.0
        return (
            self.source in (None, letter.source)
            and self.reason in (None, letter.reason)
            and (self.subscription is None or digest.startswith(self.subscription.removeprefix("sha256:")))
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )


async def settle(store: Store, action: Action, who: str | None, source: str, ids: Sequence[str]) -> list[str]:
    """Replay or discard dead letters of a source; returns those that were dead until now.

    It is written down first. Those that another operator was faster with are named in a second entry, so that the trail
    never shows two who did it.
    """
    await audit.record(store, action, who, source=source, dispatches=list(ids))
    act = {
        REPLAY: lambda: store.replay_dead(source, ids, time.time()),
        DISCARD: lambda: store.discard_dead(source, ids),
    }
    done = await act[action]()
    left = sorted(set(ids) - set(done))
    if left:
        await audit.record(store, action, who, source=source, dispatches=left, void="no-dead-letter")
    return done
