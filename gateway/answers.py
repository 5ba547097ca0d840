"""What GitHub's answers mean: done, again, wait, never, or moved; what they say of things, and what their headers state.

The rule of this module: functions of an answer and of the time; who asked, and how often before, is not known here.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson
from multidict import CIMultiDictProxy

from gateway.errors import Unavailable
from gateway.structs import Opaque, Value

# https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#exceeding-the-rate-limit
# Without a stated time: at least one minute, then exponentially longer.
PARK_S = 60.0
PARK_MAX_S = 3_600.0
STATED_PARK_MAX_S = 86_400.0

DEAD = {403: "forbidden", 404: "not-found", 410: "gone", 413: "too-large", 422: "unprocessable"}

Kind = Literal["done", "retry", "park", "dead", "moved"]


class Answer(Value):
    """What a call came to. `status` is None where no answer arrived; `until` (Unix seconds) is set for `park` alone.

    `done` 204; `retry` may have been taken, or not; `park` the whole installation waits until `until`; `dead` will never
    work as it is; `moved` a permanent redirect, which is never followed.
    """

    kind: Kind
    status: int | None
    reason: str
    until: float | None = None

    @property
    def outage(self) -> bool:
        """True where GitHub itself is in trouble or out of reach: what a circuit counts."""
        return self.kind == "retry" and (self.status is None or self.status >= 500)


class GitHubAway(Unavailable):
    """GitHub did not answer the question now (`retry`, `park`); `answer` says why."""

    def __init__(self, answer: Answer, retry_after_s: int = 5) -> None:
        super().__init__(answer.reason, retry_after_s)
        self.answer = answer


class GitHubRefusal(Exception):  # noqa: N818 (GitHub's answer, not a defect)
    """GitHub's answer is no (`dead`, `moved`); asking again changes nothing. `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer
        self.reason = answer.reason


class Reply(Opaque):
    """One HTTP answer, its body cut at a limit (`whole` says whether all of it is here)."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    whole: bool


class Repository(Value):
    """What GitHub says of a repository: its lasting `id`, its name as GitHub spells it, its default branch."""

    id: int
    full_name: str
    default_branch: str


class About(Value):
    """The App as GitHub knows it, and GitHub's own clock at that answer."""

    id: int
    slug: str
    date: float | None


class Installation(Value):
    """Where the App is installed, and what it was granted there."""

    id: int
    account: str
    permissions: Mapping[str, str]
    suspended: bool


class Rate(Value):
    """What GitHub said of one installation's rate limit: requests left of how many, and when it starts anew."""

    remaining: int
    limit: int
    resets_at: float


def meaning(status: int, done: int) -> Answer:
    """Return what a status that is no rate limit means; `done` is the one that is success."""
    if status == done:
        return Answer("done", status, "done")
    # https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects
    if status in (301, 308):
        return Answer("moved", status, "repository-moved")
    if 300 <= status < 400:
        # Not for good: maintenance, or a proxy that wants a login. Of the repository it says nothing.
        return Answer("retry", status, "api-redirect")
    if 400 <= status < 500:
        # 401 never arrives here: the callers answer it with a new token.
        return Answer("dead", status, DEAD.get(status, f"http-{status}"))
    return Answer("retry", status, "server-error" if status >= 500 else "unexpected-status")


def failure(answer: Answer, now: float) -> GitHubAway | GitHubRefusal:
    """Return what a caller that wanted content is told of an answer without it."""
    if answer.kind in ("retry", "park"):
        wait_s = 5 if answer.until is None else max(1, round(answer.until - now))
        return GitHubAway(answer, wait_s)
    return GitHubRefusal(answer)


def is_rate_limit(reply: Reply) -> bool:
    """Tell a rate limit from a plain refusal, both of which GitHub answers with 403."""
    if reply.status != 403:
        return reply.status == 429
    if "retry-after" in reply.headers or reply.headers.get("x-ratelimit-remaining") == "0":
        return True
    match decoded(reply):
        case {"message": str(message)}:
            return "secondary rate limit" in message.lower() or "abuse detection" in message.lower()
    return False


def stated_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that GitHub asks to wait: `retry-after`, else up to `x-ratelimit-reset` where nothing is left."""
    after = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", after):
        return float(after)
    if (date := http_date(after)) is not None:
        return date - (http_date(headers.get("date", "")) or now)
    reset = headers.get("x-ratelimit-reset", "").strip()
    if headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"[0-9]{1,12}", reset):
        # Against GitHub's own clock: ours may be wrong, and a reset in our past would be no wait at all.
        return float(reset) - (http_date(headers.get("date", "")) or now)
    return None


def unstated_wait_s(strikes: int) -> float:
    """Return the seconds to wait where GitHub names none, after `strikes` such limits in a row."""
    return float(min(PARK_S * 2 ** min(strikes, 10), PARK_MAX_S))


def rate_of(headers: Mapping[str, str]) -> Rate | None:
    """Read the budget that GitHub states beside every answer.

    https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#checking-the-status-of-your-rate-limit
    """
    texts = [headers.get(f"x-ratelimit-{name}", "") for name in ("remaining", "limit", "reset")]
    if not all(re.fullmatch(r"[0-9]{1,12}", text) for text in texts):
        return None
    remaining, limit, reset = map(int, texts)
    return Rate(remaining, limit, reset)


def next_link(header: str) -> str | None:
    """Return the link of the next page. https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api."""
    found = re.search(r'<([^<>]+)>;\s*rel="next"', header)
    return found[1] if found else None


def http_date(text: str) -> float | None:
    """Return a header's date as Unix seconds, None where it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def decoded(reply: Reply) -> Any:
    """Return the decoded body, None where it is not JSON."""
    try:
        return orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None
