"""The delivery logs of GitHub's and GitLab's hooks, as the doubles keep them; what is asked for again is attempted at once."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

PERIOD_S = 3 * 86_400  # https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks


@dataclass(slots=True)
class Log:
    """Attempts of one hook, oldest first. `send` makes another attempt of a delivery and returns its status."""

    send: Callable[[str], Awaitable[int]]
    clock: Callable[[], float]
    rows: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def add(self, delivery: str, status: int, *, redelivery: bool = False, at: float | None = None) -> None:
        """Note an attempt."""
        self.rows.append(
            {
                "id": 1_000 + len(self.rows),
                "guid": delivery,
                "at": self.clock() if at is None else at,
                "status": status,
                "redelivery": redelivery,
            }
        )

    def _row(self, ident: str) -> dict[str, Any] | None:
        return next((row for row in self.rows if str(row["id"]) == ident), None)

    async def again(self, ident: str, within_s: float) -> bool:
        """Attempt a delivery again. False: it is unknown or too old."""
        row = self._row(ident)
        if row is None or self.clock() - row["at"] > within_s:
            return False
        self.asked.append(row["guid"])
        self.add(row["guid"], await self.send(row["guid"]), redelivery=True)
        return True

    def github(self, request: web.Request) -> web.Response:
        """A page by cursor: https://docs.github.com/en/rest/repos/webhooks#list-deliveries-for-a-repository-webhook."""
        size = int(request.query.get("per_page", "30"))
        newest = self.rows[::-1]
        start = next((n for n, row in enumerate(newest) if f"v1_{row['id']}" == request.query.get("cursor")), 0)
        shown = [
            {
                "id": row["id"],
                "guid": row["guid"],
                "delivered_at": datetime.fromtimestamp(row["at"], UTC).isoformat().replace("+00:00", "Z"),
                "redelivery": row["redelivery"],
                "duration": 0.1,
                "status": "OK" if 200 <= row["status"] < 300 else "failed",
                "status_code": row["status"],
                "event": "issues",
                "action": "opened",
            }
            for row in newest[start : start + size]
        ]
        headers = {}
        if start + size < len(newest):
            url = request.url.with_query({"per_page": str(size), "cursor": f"v1_{newest[start + size]['id']}"})
            headers["Link"] = f'<{url}>; rel="next"'
        return web.json_response(shown, headers=headers)

    def gitlab(self, request: web.Request) -> web.Response:
        """A page by number: https://docs.gitlab.com/api/project_webhooks/#list-all-events-for-a-project-webhook."""
        size, page = min(int(request.query.get("per_page", "20")), 20), int(request.query.get("page", "1"))
        shown = [
            {
                "id": row["id"],
                "url": "https://hooks.example",
                "trigger": "merge_request_hooks",
                "request_headers": {"Idempotency-Key": row["guid"], "X-Gitlab-Event": "Merge Request Hook"},
                "request_data": {},
                "response_status": str(row["status"]) if row["status"] else "internal error",
                "execution_duration": 0.1,
            }
            for row in self.rows[::-1][(page - 1) * size : page * size]
        ]
        return web.json_response(shown)
