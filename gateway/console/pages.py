"""The pages: server-rendered, live by fetching themselves anew. Every one but the login needs an operator's session."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway import audit, log, words
from gateway.app import Gateway
from gateway.console.acts import Acts
from gateway.console.api import Wrong, read_body
from gateway.console.picture import draw
from gateway.console.session import COOKIE, Operator, Operators, good_form, keep, same_origin
from gateway.deliveries import delivery_page, one_delivery
from gateway.delivery import Outcome
from gateway.errors import Unavailable
from gateway.health import ORDER, Lookout, Row, SourceHealth
from gateway.subscriptions import Enrolled
from gateway.tracing import trace_id

Page = Callable[[Request, Operator], Awaitable[Response]]
Change = Callable[[Request, Operator, dict[str, list[str]]], Awaitable[Response]]
ROWS = 100  # subscriptions of one page
NOT_ANSWERED = {
    "unknown": "Nobody is asked about this dispatch.",
    "already": "It was answered before: the first answer stands.",
    "expired": "The question has ended: the dispatch is, or will be, a dead letter.",
}


class Pages:
    """The routes and what they show."""

    def __init__(self, gateway: Gateway, lookout: Lookout, operators: Operators, acts: Acts) -> None:
        self._gateway, self._lookout, self._operators, self._acts = gateway, lookout, operators, acts
        self._templates = Environment(
            loader=PackageLoader("gateway.console"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"age": words.age, "utc": words.utc, "short": words.short}
        self._templates.globals |= {
            "health_words": words.HEALTH,
            "dispatch_words": words.DISPATCH,
            "settled_words": words.SETTLED,
            "standing": words.standing,
            "about_test": words.about_test,
            "about_run": words.about_run,
            "unasked": words.unasked,
            "about_suspension": words.about_suspension,
            "item_words": lambda reason: words.words("rejected", reason).why,
        }

    def routes(self) -> list[Route]:
        """All of them."""

        def page(path: str, show: Page) -> Route:
            return Route(path, self._shown(show), methods=["GET"])

        def form(path: str, change: Change) -> Route:
            return Route(path, self._changed(change), methods=["POST"])

        return [
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            form("/logout", self._logout),
            page("/", self._overview),
            page("/deliveries", self._deliveries),
            page("/deliveries/{id}", self._delivery),
            page("/sources/{name}", self._source),
            form("/sources/{name}/test", self._test),
            page("/subscriptions", self._subscriptions),
            page("/dead", self._dead),
            form("/dead", self._settle),
            page("/asks", self._asks),
            form("/asks", self._answer),
        ]

    def errors(self) -> Mapping[Any, Any]:
        """Pages for what went wrong."""

        async def plain(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            operator = await self._operators.of_session(request, self._gateway.store)
            return self._told(
                error.status_code, "Not found" if error.status_code == 404 else "Not possible", "", operator
            )

        return {HTTPException: plain}

    # -- who ---------------------------------------------------------------------------------------------------------

    def _shown(self, show: Page) -> Callable[[Request], Awaitable[Response]]:
        async def get(request: Request) -> Response:
            operator = await self._operators.of_session(request, self._gateway.store)
            if operator is None:
                after = "?kept=no" if "signed-in" in request.query_params else ""
                return RedirectResponse(f"/login{after}", 303)
            return await self._safely(operator, show(request, operator))

        return get

    def _changed(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def post(request: Request) -> Response:
            operator = await self._operators.of_session(request, self._gateway.store)
            if operator is None:
                return RedirectResponse("/login", 303)
            try:
                fields = await _form(request)
            except Wrong as error:
                return self._told(error.status, "Not possible", error.text, operator)
            if not same_origin(request) or not good_form(operator, fields.get("csrf", [""])[0]):
                text = "This form was not made for your session. Load the page anew."
                return self._told(403, "Refused", text, operator)
            return await self._safely(operator, change(request, operator, fields))

        return post

    async def _safely(self, operator: Operator, work: Awaitable[Response]) -> Response:
        try:
            return await work
        except Unavailable as error:
            text = f"The store does not answer ({error.reason}). Deliveries are answered 503 until it is back."
            return self._told(503, "The store is away", text, operator)
        except Wrong as error:
            title = "Not found" if error.status == 404 else "Not possible"
            return self._told(error.status, title, error.text, operator)

    async def _login_page(self, request: Request) -> Response:
        if await self._operators.of_session(request, self._gateway.store) is not None:
            return RedirectResponse("/", 303)
        return self._login_form(200, "kept" if request.query_params.get("kept") == "no" else "")

    def _login_form(self, status: int, problem: str) -> Response:
        return self._render("login.html", status, problem=problem, configured=self._operators.configured)

    async def _login(self, request: Request) -> Response:
        if not same_origin(request):
            return self._told(403, "Refused", "Log in on the login page.")
        try:
            fields = await _form(request)
        except Wrong as error:
            return self._told(error.status, "Not possible", error.text)
        if self._operators.locked(request):
            return self._login_form(429, "locked")
        cookie = self._operators.login_of(request, fields.get("token", [""])[0].strip())
        if cookie is None:
            log.event("login-refused")
            return self._login_form(401, "wrong")
        with suppress(Unavailable):  # a store that is away is what an operator wants to look at
            await audit.record(self._gateway.store, "login", f"operator/{cookie.split('.')[1]}")
        response = RedirectResponse("/?signed-in", 303)
        keep(response, request, cookie)
        return response

    async def _logout(self, _request: Request, operator: Operator, _fields: dict[str, list[str]]) -> Response:
        with suppress(Unavailable):  # the browser forgets it all the same, and this process too
            await self._operators.end(operator, self._gateway.store)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/")
        return response

    # -- pages -------------------------------------------------------------------------------------------------------

    async def _overview(self, _request: Request, operator: Operator) -> Response:
        look = await self._lookout.look()
        sources = sorted(look.sources, key=lambda one: (ORDER.index(one.state), one.name))
        known = {one.subscription.digest: one for one in self._gateway.configuration.enrolled}
        return self._render(
            "overview.html",
            look=look,
            operator=operator,
            sources=sources,
            picture=draw(one.flow for one in look.sources),
            lanes=sorted(look.lanes, key=lambda lane: (lane.head.sealed_at if lane.head else None) or lane.due)[:20],
            known=known,
            suspended=[row for row in look.subscriptions if row.state != "active"],
            summary=words.summary(look),
            enrolled=len(known),
        )

    async def _deliveries(self, request: Request, operator: Operator) -> Response:
        params = {key: value for key, value in request.query_params.items() if value}
        if (ident := params.pop("id", None)) is not None:
            return (
                RedirectResponse(f"/deliveries/{ident.strip()[:64]}", 303)
                if _is_id(ident)
                else self._no_delivery(operator)
            )
        try:
            page = await delivery_page(self._gateway.store, {"limit": "50", **params})
        except ValueError as error:
            raise Wrong(400, str(error)) from None
        older = urlencode({**{k: v for k, v in params.items() if k != "next"}, "next": page["next"] or ""})
        return self._render(
            "deliveries.html",
            operator=operator,
            rows=[{**row, "words": words.words(row["outcome"], row["reason"])} for row in page["deliveries"]],
            older=older if page["next"] else None,
            sources=sorted(self._gateway.configuration.sources),
            outcomes=list(Outcome),
            chosen=params,
        )

    def _no_delivery(self, operator: Operator) -> Response:
        return self._told(404, "Not found", "No such delivery or dispatch, or its record was trimmed.", operator)

    async def _delivery(self, request: Request, operator: Operator) -> Response:
        ident = request.path_params["id"]
        row = await one_delivery(self._gateway.store, ident) if _is_id(ident) else None
        if row is None:
            return self._no_delivery(operator)
        known = {one.subscription.digest: one for one in self._gateway.configuration.enrolled}
        told = words.words(row["outcome"], row["reason"])
        traces = self._gateway.watch.traces
        traced = traces is not None and traces.sampled(ident)
        return self._render(
            "delivery.html",
            operator=operator,
            row=row,
            words=told,
            again=words.again(row["outcome"], row["reason"]),
            items=row.get("items", ()),
            steps=words.steps(row, told),
            known=known,
            trace=f"{trace_id(ident):032x}" if traced else None,
        )

    async def _source(self, request: Request, operator: Operator) -> Response:
        name = request.path_params["name"]
        look = await self._lookout.look()
        source = self._gateway.configuration.sources.get(name)
        if source is None:
            raise Wrong(404, "No configured source has this name.")
        health: SourceHealth | None = next((one for one in look.sources if one.name == name), None)
        if health is None:
            raise Unavailable(look.away or "store-away")
        page = await delivery_page(self._gateway.store, {"source": name, "limit": "10"})
        refused = await delivery_page(self._gateway.store, {"source": name, "outcome": "rejected", "limit": "1"})
        settings, used = self._gateway.configuration.settings, await self._gateway.store.secrets_used(name)
        hook = f"{settings.server.public_url or ''}/hooks/{name}"
        last = refused["deliveries"][0] if refused["deliveries"] else None
        return self._render(
            "source.html",
            operator=operator,
            look=look,
            source=source,
            health=health,
            picture=draw([health.flow]),
            rows=[{**row, "words": words.words(row["outcome"], row["reason"])} for row in page["deliveries"]],
            refused=last and {**last, "words": words.words(last["outcome"], last["reason"])},
            subscriptions=[row for row in look.subscriptions if row.source == name],
            secrets=[(label, used.get(reference)) for label, reference, _ in settings.sources[name].references()],
            can_test=self._acts.can_test(name),
            hook=hook,
        )

    async def _test(self, request: Request, operator: Operator, _fields: dict[str, list[str]]) -> Response:
        sent = await self._acts.test(operator, request.path_params["name"])
        if sent is None:
            raise Wrong(404, "No sample can be signed for this source: only its provider has the key.")
        if sent.status == 503:
            raise Unavailable("not-taken")
        await self._gateway.store.flush()  # a refusal's record would be written a second later
        await self._gateway.watch.flush(self._gateway.store)
        await self._lookout.look(fresh=True)
        return RedirectResponse(f"/deliveries/{sent.delivery}", 303)

    async def _subscriptions(self, request: Request, operator: Operator) -> Response:
        look = await self._lookout.look()
        if look.away is not None:
            raise Unavailable(look.away)
        chosen = {
            key: value for key, value in request.query_params.items() if value and key in {"source", "state", "q"}
        }
        enrolled = self._gateway.configuration.enrolled
        found = fitting(enrolled, {row.digest: row for row in look.subscriptions}, chosen)
        at = request.query_params.get("from", "0")
        first = int(at) if at.isascii() and at.isdecimal() and len(at) < 8 else 0

        def link(start: int) -> str | None:
            return urlencode({**chosen, "from": start}) if 0 <= start < len(found) else None

        return self._render(
            "subscriptions.html",
            operator=operator,
            enrolled=found[first : first + ROWS],
            fitting=len(found),
            total=len(enrolled),
            first=first,
            previous=link(max(0, first - ROWS)) if first else None,
            following=link(first + ROWS),
            page_size=ROWS,
            chosen=chosen,
            sources=sorted(self._gateway.configuration.sources),
        )

    async def _dead(self, _request: Request, operator: Operator) -> Response:
        look = await self._lookout.look()
        if look.away is not None:
            raise Unavailable(look.away)
        known = {one.subscription.digest: one for one in self._gateway.configuration.enrolled}
        sources = [one for one in look.sources if one.depth.dead]
        return self._render("dead.html", operator=operator, sources=sources, known=known)

    async def _settle(self, _request: Request, operator: Operator, fields: dict[str, list[str]]) -> Response:
        ids = fields.get("id", [])[:1000]
        if source := fields.get("source", [""])[0]:
            if source not in {one.name for one in (await self._lookout.look()).sources}:
                raise Wrong(404, "No source has this name.")
            ids = await self._acts.letters(source)
        if not ids:
            raise Wrong(400, "Choose at least one dead letter.")
        match fields.get("act", [""])[0]:
            case "replay":
                await self._acts.replay(operator, ids)
            case "discard":
                await self._acts.discard(operator, ids)
            case _:
                raise Wrong(400, "Choose what to do.")
        await self._lookout.look(fresh=True)
        return RedirectResponse("/dead", 303)

    async def _asks(self, _request: Request, operator: Operator) -> Response:
        look = await self._lookout.look()
        if look.away is not None:
            raise Unavailable(look.away)
        known = {one.subscription.digest: one for one in self._gateway.configuration.enrolled}
        return self._render("asks.html", operator=operator, asks=look.asks, known=known)

    async def _answer(self, _request: Request, operator: Operator, fields: dict[str, list[str]]) -> Response:
        ident, answer = fields.get("id", [""])[0], fields.get("answer", [""])[0]
        if answer not in {"yes", "no"}:
            raise Wrong(400, "Answer yes or no.")
        status = await self._acts.answer(operator, ident, answer)
        await self._lookout.look(fresh=True)
        if status != "answered":
            raise Wrong(404 if status == "unknown" else 409, NOT_ANSWERED[status])
        return RedirectResponse("/asks", 303)

    # -- rendering ---------------------------------------------------------------------------------------------------

    def _told(self, status: int, title: str, text: str, operator: Operator | None = None) -> Response:
        return self._render("told.html", status, operator=operator, title=title, text=text)

    def _render(self, name: str, status: int = 200, **values: Any) -> Response:
        template = self._templates.get_template(name)
        return HTMLResponse(template.render({"operator": None, "now": time.time(), **values}), status)


def fitting(
    enrolled: Sequence[Enrolled], rows: Mapping[str, Row], chosen: Mapping[str, str]
) -> list[tuple[Enrolled, Row]]:
    """The subscriptions that fit `source`, `state` and `q`, what is not active first."""
    text = chosen.get("q", "").strip()
    found = []
    for one in enrolled:
        row = rows.get(one.subscription.digest)
        if row is None or chosen.get("source", one.source) != one.source or chosen.get("state", row.state) != row.state:
            continue
        if text in row.repository or text in row.digest:
            found.append((one, row))
    return sorted(found, key=lambda pair: pair[1].state == "active")


async def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form as browsers send it by default."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Wrong(415, "Not a form.")
    try:
        text = (await read_body(request)).decode()
        return parse_qs(text, keep_blank_values=True, max_num_fields=2000, errors="strict")
    except ValueError:
        raise Wrong(400, "Not a form.") from None


def _is_id(text: str) -> bool:
    return len(text.strip()) == 36 and all(c in "0123456789abcdef-" for c in text.strip())
