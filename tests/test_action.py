"""The action's real step, run with node, against the receiver over HTTP, the OIDC double, and dispatches the GitHub double took."""

import asyncio
import contextlib
import copy
import hashlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway import provenance
from gateway.demo import free_port
from gateway.doubles import runner
from gateway.doubles.oidc import run_claims
from gateway.doubles.runner import Step
from tests.destination_house import BOT, COMMIT, SCOPE, House, enrolled_with, house, receiving
from tests.valkey import PrivateValkey

NODE = shutil.which("node")
TEXT = "on: repository_dispatch\n"
pytestmark = pytest.mark.skipif(NODE is None, reason="the action needs node")


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server, TEXT) as made:
        yield made


@pytest.fixture
async def receiver(home: House) -> AsyncIterator[str]:
    async with receiving(home) as address:
        yield address


@dataclass
class Job:
    """One run of the destination workflow on a runner."""

    home: House
    receiver: str
    folder: Path
    claims: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)

    async def run(self, event: Any, documents: list[Any] | None = None, run_id: str | None = None) -> Step:
        subscription = self.home.one.subscription
        number = subscription.repository_id or 0
        claims = run_claims(
            repository=subscription.repository,
            repository_id=number,
            workflow=subscription.workflow,
            workflow_sha=COMMIT,
            actor_id=BOT,
        )
        given = {**claims, **self.claims, **({"run_id": run_id} if run_id else {})}
        run, bearer = self.home.oidc.issuer.start_run(given)
        paths = []
        for n, document in enumerate([subscription.document] if documents is None else documents):
            (self.folder / f"{n}.json").write_text(json.dumps(document))
            paths.append(f"{n}.json")
        return await runner.step(
            runner.Run(
                subscription.repository,
                number,
                subscription.workflow,
                run,
                f"{self.home.oidc.address}/token?run={run}",
                bearer,
            ),
            event if isinstance(event, str) else json.dumps(event),
            {"receiver": self.receiver, "subscription": "\n".join(paths), "sender-id": str(BOT)},
            workspace=self.folder,
            changes=self.env,
        )


def started_by(body: Any, sender: int = BOT) -> dict[str, Any]:
    """The event of the run that a dispatch starts: https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository_dispatch."""
    return {
        "action": body["event_type"],
        "branch": "main",
        "client_payload": body["client_payload"],
        "repository": {"id": 1296269, "full_name": "acme/app", "default_branch": "main"},
        "sender": {"login": "gateway-double[bot]", "id": sender, "type": "Bot"},
    }


@pytest.fixture
def job(home: House, receiver: str, tmp_path: Path) -> Job:
    return Job(home, receiver, tmp_path)


def test_the_action_declares_the_inputs_and_outputs_that_workflows_rely_on() -> None:
    assert set(runner.manifest()["inputs"]) == {"receiver", "subscription", "sender-id", "audience-prefix"}
    assert set(runner.manifest()["outputs"]) == {"admitted", "events"}
    assert runner.manifest()["runs"]["using"] == "node20"
    assert runner.manifest()["inputs"]["audience-prefix"]["default"] == "gh-aw-gateway:"
    imports = re.findall(r'from "([^"]+)"', (runner.ACTION / "admit.mjs").read_text())
    assert imports
    assert all(name.startswith("node:") for name in imports)


async def test_one_run_is_admitted_and_a_second_ends_green_without_events(home: House, job: Job) -> None:
    body = await home.sent()
    step = await job.run(started_by(body))
    assert step.code == 0, step.log
    assert step.outputs["admitted"] == "true"
    assert json.loads(step.outputs["events"]) == body["client_payload"]["gateway"]["events"]
    other = await job.run(started_by(body))
    assert (other.code, other.outputs) == (0, {"admitted": "false", "events": "[]"})
    assert "another run has this dispatch" in other.log
    dispatch = await home.store.dispatch(body["client_payload"]["gateway"]["dispatch"])
    assert dispatch is not None
    again = await job.run(started_by(body), run_id=dispatch.run)  # a re-run of the run that has it
    assert (again.code, again.outputs["admitted"]) == (0, "true")


async def test_addresses_with_and_without_the_path(home: House, job: Job) -> None:
    body = await home.sent()
    for n, address in enumerate((f"{job.receiver}/", f"{job.receiver}/admission", f"{job.receiver}/admission/")):
        step = await job.run(started_by(body), run_id="55")
        job.env["INPUT_RECEIVER"] = address
        assert (step.code, step.outputs["admitted"]) == (0, "true"), (n, step.log)


Edit = Callable[[dict[str, Any]], object]


def gateway_of(event: dict[str, Any]) -> Any:
    return event["client_payload"]["gateway"]


def event_of(event: dict[str, Any]) -> Any:
    return gateway_of(event)["events"][0]


def at(url: str) -> Edit:
    def edit(event: dict[str, Any]) -> None:
        event_of(event).update(url=url, id="uri:" + hashlib.sha256(url.encode()).hexdigest())

    return edit


ENVELOPES: dict[str, tuple[str, Edit]] = {
    "no events": ("1 to 20", lambda e: gateway_of(e).update(events=[])),
    "too many events": ("1 to 20", lambda e: gateway_of(e).update(events=[event_of(e)] * 21)),
    "an event twice": ("twice", lambda e: gateway_of(e).update(events=[event_of(e)] * 2)),
    "a raw body": ("closed", lambda e: event_of(e).update(body="text")),
    "a raw body beside the gateway": ("closed", lambda e: e["client_payload"].update(body="text")),
    "a member of the gateway": ("closed", lambda e: gateway_of(e).update(delivery="x")),
    "a missing member": ("closed", lambda e: gateway_of(e).pop("projection")),
    "another version": ("version", lambda e: gateway_of(e).update(version=3)),
    "a version as text": ("version", lambda e: gateway_of(e).update(version="2")),
    "another projection": ("projection", lambda e: gateway_of(e).update(projection="x/v2")),
    "a dispatch that is no id": ("dispatch id", lambda e: gateway_of(e).update(dispatch="1")),
    "a dispatch with a line feed": (
        "dispatch id",
        lambda e: gateway_of(e).update(dispatch=gateway_of(e)["dispatch"] + "\n"),
    ),
    "another trigger": ("names no trigger", lambda e: event_of(e).update(types=["issue-closed"])),
    "a trigger of the prototype": ("names no trigger", lambda e: event_of(e).update(types=["constructor"])),
    "two triggers": ("exactly one", lambda e: event_of(e).update(types=["issue-created", "issue-created"])),
    "no trigger": ("exactly one", lambda e: event_of(e).update(types=[])),
    "another origin": ("origin", at("https://evil.example/acme/issue/ENG-42")),
    "an origin with a suffix": ("origin", at("https://linear.app.evil.example/acme")),
    "an origin with a port": ("origin", at("https://linear.app:444/acme")),
    "http": ("canonical", at("http://linear.app/acme/issue/ENG-42")),
    "userinfo": ("canonical", at("https://linear.app@evil.example/x")),
    "a script": ("canonical", at("javascript:alert(1)")),
    "white space in the URL": ("canonical", at("https://linear.app/acme/issue/ENG 42")),
    "a line feed after the URL": ("canonical", at("https://linear.app/acme\n")),
    "dots in the path": ("dots", at("https://linear.app/acme/../admin")),
    "an empty segment": ("dots", at("https://linear.app/acme//issue/ENG-42")),
    "two slashes at the end": ("dots", at("https://linear.app/acme/issue/ENG-42//")),
    "nothing but a slash": ("dots", at("https://linear.app/?a")),
    "a URL that is too long": ("bounded", at("https://linear.app/" + "a" * 2048)),
    "an id of another URL": ("identity", lambda e: event_of(e).update(id="uri:" + "0" * 64)),
    "missing scope": ("lacks", lambda e: event_of(e)["filters"].pop("teams")),
    "widened scope": ("widened", lambda e: event_of(e)["filters"].update(projects=["p"])),
    "two values": ("exactly one", lambda e: event_of(e)["filters"]["teams"].append("other")),
    "no value": ("exactly one", lambda e: event_of(e)["filters"].update(teams=[])),
    "a value that is not granted": ("not granted", lambda e: event_of(e)["filters"].update(teams=["other"])),
    "a value that is no text": ("exactly one", lambda e: event_of(e)["filters"].update(teams=[7])),
    "filters that are a list": ("no object", lambda e: event_of(e).update(filters=[])),
    "an event that is null": ("no object", lambda e: gateway_of(e).update(events=[None])),
    "a payload that is null": ("no object", lambda e: e.update(client_payload=None)),
}


@pytest.mark.parametrize("name", ENVELOPES)
async def test_an_envelope_outside_of_the_subscription_is_refused_before_anyone_is_asked(
    home: House, job: Job, name: str
) -> None:
    said, edit = ENVELOPES[name]
    body = await template(home)
    event = started_by(body)
    edit(event)
    step = await job.run(event)
    assert (step.code, step.outputs) == (1, {"admitted": "false", "events": "[]"}), step.log
    assert said in step.log
    assert "::error title=Gateway admission::" in step.log
    assert len(step.log.splitlines()) == 1
    with pytest.raises(ValueError, match=r"^\$"):  # `gateway envelope check --subscription` says the same
        provenance.check(
            {"event_type": event["action"], "client_payload": event["client_payload"]}, home.one.subscription
        )


async def test_one_slash_at_the_end_of_a_url_is_no_empty_segment(home: House, job: Job) -> None:
    event = started_by(await template(home))
    at("https://linear.app/acme/issue/ENG-42/")(event)
    step = await job.run(event)
    assert step.code == 1  # the receiver, which was asked, has no such dispatch
    assert "url" not in step.log
    assert "not-found" in step.log or "unknown" in step.log, step.log


async def template(home: House) -> dict[str, Any]:
    """A good body, without a dispatcher."""
    from gateway.envelope import EnvelopeEvent, build  # noqa: PLC0415
    from gateway.store import uuid7  # noqa: PLC0415
    from tests.destination_house import SCOPE, URL  # noqa: PLC0415

    subscription = home.one.subscription
    body = build(subscription.digest, subscription.event_type, uuid7(), [EnvelopeEvent(URL, "issue-created", SCOPE)])
    provenance.check(body, subscription)
    return copy.deepcopy(body)


SENDERS: dict[str, tuple[str, Callable[[dict[str, Any], Job], object]]] = {
    "a job's own GITHUB_TOKEN": ("not the gateway App's bot", lambda e, _: e["sender"].update(id=41898282)),
    "a person": ("not the gateway App's bot", lambda e, _: e["sender"].update(id=1)),
    "an id as text": ("not the gateway App's bot", lambda e, _: e["sender"].update(id=str(BOT))),
    "no sender": ("no sender", lambda e, _: e.pop("sender")),
    "github-actions[bot] as the configured sender": (
        "any job could pass",
        lambda _, j: j.env.update({"INPUT_SENDER-ID": "41898282"}),
    ),
    "no sender-id": ("sender-id is missing", lambda _, j: j.env.update({"INPUT_SENDER-ID": ""})),
    "a login as sender-id": ("no numeric", lambda _, j: j.env.update({"INPUT_SENDER-ID": "gateway[bot]"})),
    "another event": ("repository_dispatch", lambda _, j: j.env.update(GITHUB_EVENT_NAME="push")),
    "another event type": ("event type", lambda e, _: e.update(action="gateway-other")),
    "another repository": ("another repository", lambda _, j: j.env.update(GITHUB_REPOSITORY="acme/other")),
    "another repository id": ("repository id", lambda _, j: j.env.update(GITHUB_REPOSITORY_ID="1")),
    "a workflow that is not named": ("no GITHUB_WORKFLOW_REF", lambda _, j: j.env.update(GITHUB_WORKFLOW_REF=None)),
    "no run id": ("no GITHUB_RUN_ID", lambda _, j: j.env.update(GITHUB_RUN_ID="")),
    "no event file": ("no GITHUB_EVENT_PATH", lambda _, j: j.env.update(GITHUB_EVENT_PATH=None)),
    "another workflow": (
        "another workflow",
        lambda _, j: j.env.update(GITHUB_WORKFLOW_REF="acme/app/.github/workflows/x.yml@refs/heads/main"),
    ),
    "no permission for a token": ("id-token: write", lambda _, j: j.env.update(ACTIONS_ID_TOKEN_REQUEST_URL=None)),
    "a request token that is not accepted": (
        "no identity token",
        lambda _, j: j.env.update(ACTIONS_ID_TOKEN_REQUEST_TOKEN="x"),
    ),
    "plain http to the receiver": ("https", lambda _, j: j.env.update(INPUT_RECEIVER="http://hooks.example.com")),
    "certificates that nobody checks": (
        "NODE_EXTRA_CA_CERTS",
        lambda _, j: j.env.update(NODE_TLS_REJECT_UNAUTHORIZED="0"),
    ),
    "no document": ("cannot be read", lambda _, j: j.env.update(INPUT_SUBSCRIPTION="missing.json")),
}


@pytest.mark.parametrize("name", SENDERS)
async def test_what_is_not_ours_fails_with_what_to_fix(home: House, job: Job, name: str) -> None:
    said, edit = SENDERS[name]
    event = started_by(await template(home))
    edit(event, job)
    step = await job.run(event)
    assert (step.code, step.outputs) == (1, {"admitted": "false", "events": "[]"}), step.log
    assert said in step.log


async def test_an_edited_document_is_refused(home: House, job: Job) -> None:
    document = {**home.one.subscription.document, "grants": {"teams": ["other"]}}
    step = await job.run(started_by(await template(home)), [document])
    assert step.code == 1
    assert "does not match its digest" in step.log


REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "a dispatch sent with another token": ("sender", {"actor_id": "41898282"}),
    "another repository": ("repository", {"repository_id": "5"}),
    "another workflow": ("workflow", {"workflow_ref": "acme/app/.github/workflows/x.yml@refs/heads/main"}),
    "another branch": ("ref", {"ref": "refs/heads/evil"}),
    "another environment": ("environment", {"environment": "production"}),
    "a changed workflow": ("workflow-hash", {"workflow_sha": "c" * 40, "job_workflow_sha": "c" * 40}),
}


async def test_what_the_receiver_refuses_fails_and_says_why(home: House, job: Job) -> None:
    body = await home.sent()
    home.file("on: push\n", "c" * 40)
    for reason, claims in REFUSALS.values():
        job.claims = claims
        step = await job.run(started_by(body))
        assert (step.code, step.outputs["admitted"]) == (1, "false"), step.log
        assert f"{reason}: " in step.log
    job.claims = {}
    assert (await job.run(started_by(body))).outputs["admitted"] == "true"


async def test_an_envelope_edited_after_dispatch(home: House, job: Job) -> None:
    body = copy.deepcopy(await home.sent())
    at("https://linear.app/acme/issue/ENG-43")(body)
    step = await job.run(started_by(body))
    assert (step.code, step.outputs["events"]) == (1, "[]")
    assert "not the one that was sent" in step.log


async def test_a_dispatch_that_was_never_sent(home: House, job: Job) -> None:
    step = await job.run(started_by(await template(home)))
    assert step.code == 1
    assert "unknown-dispatch" in step.log


async def test_a_receiver_that_comes_back_admits_after_all(home: House, job: Job) -> None:
    body = await home.sent()
    home.github.double.script(home.one.subscription.repository, {"status": 502}, on="contents")
    step = await job.run(started_by(body))
    assert (step.code, step.outputs["admitted"]) == (0, "true"), step.log


@asynccontextmanager
async def answering(answer: Callable[[int, bytes], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Something else than a gateway at its address: `answer` gets the number of the call and the request, and says the bytes."""
    seen: list[bytes] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a connection that asked nothing
            writer.close()
            return
        length = re.search(rb"content-length: (\d+)", head.lower())
        seen.append(head + (await reader.readexactly(int(length[1])) if length else b""))
        writer.write(answer(len(seen), seen[-1]))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", seen


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GOOD = b'{"admitted": true, "run_id": "1", "events": 1, "envelope_digest": "x"}'
STRANGE: dict[str, tuple[str, bytes]] = {
    "a redirect": ("redirect is never followed", http("307 Moved", b"", "Location: http://127.0.0.1:9/admission")),
    "a permanent redirect": ("redirect is never followed", http("301 Moved", b"", "Location: https://x.example/")),
    "a page": ("gateway's address", http("200 OK", b"<html>", "Content-Type: text/html")),
    "an empty answer": ("gateway's address", http("200 OK")),
    "no content": ("gateway's address", http("204 No Content")),
    "a text that is true": ("gateway's address", http("200 OK", b'{"admitted": "true"}')),
    "a list": ("gateway's address", http("200 OK", b"[true]")),
    "half of the JSON": ("gateway's address", http("200 OK", GOOD[:40])),
    "no UTF-8": ("gateway's address", http("200 OK", b"\xff\xfe" + GOOD)),
    "another run": ("another run than this", http("200 OK", GOOD)),
    "an endless answer": ("gateway's address", http("200 OK", b" " * 200_000 + GOOD)),
    "a 409 that is not the gateway's": ("gateway's address", http("409 Conflict", b"{}")),
    "a 409 with another reason": ("HTTP 409", http("409 Conflict", b'{"admitted": false, "reason": "x"}')),
    "a reason that is a workflow command": (
        "gateway's address",
        http("403 Forbidden", b'{"admitted": false, "reason": "x\\n::set-output name=admitted::true"}'),
    ),
    "a reason that every object has": ("receiver's log", http("403 Forbidden", b'{"reason": "constructor"}')),
    "a reason that is not text": ("gateway's address", http("403 Forbidden", b'{"reason": ["taken"]}')),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_an_answer_that_is_not_a_gateways_fails_closed(home: House, job: Job, name: str) -> None:
    said, bytes_ = STRANGE[name]
    async with answering(lambda _n, _request: bytes_) as (address, seen):
        job.receiver = address
        step = await job.run(started_by(await template(home)))
    assert (step.code, step.outputs) == (1, {"admitted": "false", "events": "[]"}), step.log
    assert said in step.log
    assert len(seen) == 1
    assert len(step.log.splitlines()) == 2  # the mask of the token, and one error


async def test_an_answer_of_another_dispatch_is_of_no_use(home: House, job: Job) -> None:
    """A replayed answer: of this very run, and of another payload."""
    first = await home.sent()
    run = await home.admit(home.token(run_id="7"), first["client_payload"]["gateway"]["dispatch"])
    async with answering(lambda _n, _request: http("200 OK", json.dumps(run.to_json()).encode())) as (address, _):
        job.receiver = address
        step = await job.run(started_by(await template(home)), run_id="7")
    assert (step.code, step.outputs["events"]) == (1, "[]")
    assert "not the one that was sent" in step.log


async def test_a_truncated_answer_is_asked_for_again(home: House, job: Job) -> None:
    """The run was admitted and its answer lost: its repeated call is admitted again."""
    body = await home.sent()
    dispatch = body["client_payload"]["gateway"]["dispatch"]
    run = await home.admit(home.token(run_id="7"), dispatch)
    whole = json.dumps(run.to_json()).encode()
    half = http("200 OK", whole).removesuffix(whole[20:])
    async with answering(lambda n, _request: half if n == 1 else http("200 OK", whole)) as (address, seen):
        job.receiver = address
        step = await job.run(started_by(body), run_id="7")
    assert (step.code, step.outputs["admitted"], len(seen)) == (0, "true", 2), step.log


async def test_a_gateway_that_is_away_is_asked_again_within_bounds(home: House, job: Job, tmp_path: Path) -> None:
    """`Retry-After` is followed up to 30 s, and there are six attempts; the clock is Node's own, made fast."""
    fast = tmp_path / "fast.mjs"
    fast.write_text(
        "import t from 'node:timers/promises'; import { syncBuiltinESMExports } from 'node:module';"
        "t.setTimeout = async (ms) => { process.stderr.write(`wait ${ms}\\n`); }; syncBuiltinESMExports();"
    )
    job.env["NODE_OPTIONS"] = f"--import={fast}"
    waits = ["3", "86400", "-1", "soon", "0"]

    def answer(n: int, _request: bytes) -> bytes:
        after = [f"Retry-After: {waits[n - 1]}"] if n <= len(waits) else []
        return http("503 Service Unavailable", b'{"admitted": false, "reason": "contents-unreadable"}', *after)

    async with answering(answer) as (address, seen):
        job.receiver = address
        step = await job.run(started_by(await template(home)))
    assert (step.code, step.outputs["admitted"], len(seen)) == (1, "false", 6), step.log
    assert re.findall(r"wait (\d+)", step.log) == ["3000", "30000", "8000", "16000", "30000"]
    assert "contents: read" in step.log
    assert re.findall(r"Asking again in (\d+) s \((\d) of 6\)", step.log) == [
        *zip(("3", "30", "8", "16", "30"), "23456", strict=True)
    ]
    job.receiver = "http://127.0.0.1:9"
    step = await job.run(started_by(await template(home)))
    assert (step.code, step.outputs["admitted"]) == (1, "false")
    assert "BLOCKED_PORT" in step.log
    job.receiver = f"http://127.0.0.1:{free_port()}"
    step = await job.run(started_by(await template(home)))
    assert (step.code, step.outputs["admitted"]) == (1, "false")
    assert "ECONNREFUSED" in step.log
    assert "no answer" in step.log
    assert "DNS and its certificate" in step.log


async def test_a_node_that_is_too_old_says_so(home: House, job: Job, tmp_path: Path) -> None:
    old = tmp_path / "old.mjs"
    old.write_text("Object.defineProperty(process.versions, 'node', { value: '16.20.2' });")
    job.env["NODE_OPTIONS"] = f"--import={old}"
    step = await job.run(started_by(await template(home)))
    assert (step.code, step.outputs) == (1, {"admitted": "false", "events": "[]"})
    assert "this is Node 16" in step.log


def test_every_reason_of_the_receiver_has_a_fix() -> None:
    """What `/admission` can say, as the code has it, against what the action tells of it."""
    folder = Path(str(provenance.__file__)).parent
    names = ("admission", "admission_route", "oidc", "receive", "delivery", "destination", "schemes/jwt")
    text = "".join((folder / f"{name}.py").read_text() for name in names)
    said = set(re.findall(r'(?:Rejection|Unavailable)\("([a-z-]+)"', text)) | {
        "contents-unreadable",
        "jwks-unavailable",
    }
    fixes = re.search(r"const FIXES = \{\n(.*?)\n\};", (runner.ACTION / "admit.mjs").read_text(), re.DOTALL)
    assert fixes
    told = set(re.findall(r'^  "?([a-z-]+)"?:', fixes[1], re.MULTILINE))
    elsewhere = {
        "taken",
        "github-timeout",
        "claims",
    }  # ends green; told by its prefix; said of a provider's token alone
    assert said - elsewhere == told


async def test_hostile_event_files(home: House, job: Job) -> None:
    good = started_by(await template(home))
    text = json.dumps(good)
    deep = '{"a":' * 20_000 + "1" + "}" * 20_000
    hostile = {
        "no JSON": ("not JSON", "{"),
        "a list": ("no sender", f"[{text}]"),
        "null": ("no sender", "null"),
        "a byte order mark and nothing": ("not JSON", "\ufeff"),
        "huge": ("larger than", text[:-1] + ',"x":"' + "x" * 1_048_576 + '"}'),
        "a prototype": ("closed", text.replace('"gateway": {', '"gateway": {"__proto__": {"events": []}, ')),
        "deep filters": ("levels deep", text.replace('"filters": {', '"filters": {"x": ' + deep + ", ")),
        "a length of its own": (
            "1 to 20",
            text.replace('"events": [', '"events": {"length": 1, "0": ').replace("}]}}", "}}}}"),
        ),
    }
    for name, (said, content) in hostile.items():
        step = await job.run(content)
        assert (step.code, step.outputs) == (1, {"admitted": "false", "events": "[]"}), (name, step.log)
        assert said in step.log, (name, step.log)
        assert "an error of this action" not in step.log, name


async def test_no_value_can_end_an_output_or_write_another(home: House, job: Job) -> None:
    """What an envelope may hold, written as the runner reads it: one JSON line between two unguessable marks."""
    hostile = "x\nEND\nadmitted<<END\ntrue\nEND\r\n::set-output name=admitted::true\u2028"
    subscription = enrolled_with(TEXT, {"grants": {"organizations": [SCOPE["organizations"]], "teams": [hostile]}})
    home.enrolled[subscription.subscription.digest] = home.one = subscription
    body = await home.sent(scope={**SCOPE, "teams": hostile})
    step = await job.run(started_by(body))
    assert (step.code, step.outputs["admitted"]) == (0, "true"), step.log
    assert json.loads(step.outputs["events"])[0]["filters"]["teams"] == [hostile]
    assert set(step.outputs) == {"events", "admitted"}
    assert step.written.count("\n") == 6
    assert "set-output" not in step.log


@pytest.mark.parametrize("output", ["/dev/full", "missing/output", ".", None])
async def test_outputs_that_cannot_be_written_fail_the_step_and_say_so(
    home: House, job: Job, output: str | None
) -> None:
    """A full disk is found by writing alone; all else before the dispatch is taken. The run stays admitted."""
    body = await home.sent()
    job.env["GITHUB_OUTPUT"] = output and str(job.folder / output)
    step = await job.run(started_by(body), run_id="7")
    assert step.code == 1
    (told,) = [line for line in step.log.splitlines() if not line.startswith("::add-mask::")]
    assert told.startswith("::error title=Gateway admission::")
    assert ("GITHUB_OUTPUT" if output is None else "cannot be written") in told
    known = await home.store.dispatch(body["client_payload"]["gateway"]["dispatch"])
    assert known is not None
    assert known.run == ("7" if output == "/dev/full" else None)
    job.env.clear()
    assert (await job.run(started_by(body), run_id="7")).outputs["admitted"] == "true"


async def test_a_run_that_lost_and_cannot_say_so_fails(home: House, job: Job) -> None:
    body = await home.sent()
    await home.admit(home.token(run_id="7"), body["client_payload"]["gateway"]["dispatch"])
    job.env["GITHUB_OUTPUT"] = "/dev/full"
    step = await job.run(started_by(body), run_id="8")
    assert (step.code, "cannot be written" in step.log) == (1, True)


async def test_what_has_no_end_is_not_read(home: House, job: Job) -> None:
    """A checkout may hold a pipe or a link to a device."""
    os.mkfifo(job.folder / "pipe.json")
    (job.folder / "zero.json").symlink_to("/dev/zero")
    (job.folder / "large.json").write_bytes(b" " * 65_537)
    event = started_by(await template(home))
    async with asyncio.timeout(30):
        for name, said in (("pipe", "cannot be read"), ("zero", "cannot be read"), ("large", "larger than")):
            job.env["INPUT_SUBSCRIPTION"] = f"{name}.json"
            step = await job.run(event)
            assert (step.code, said in step.log) == (1, True), step.log


async def test_a_run_without_the_document_of_its_dispatch_never_takes_it(home: House, job: Job) -> None:
    """The grants changed and the workflow did not: the old document has the same hash, and its run could not use the events."""
    old = home.one.subscription.document
    changed = enrolled_with(TEXT, {"grants": {**old["grants"], "teams": [SCOPE["teams"], "another"]}})
    home.enrolled.clear()
    home.one = home.enrolled[changed.subscription.digest] = changed
    body = await home.sent()
    step = await job.run(started_by(body), [old])
    assert (step.code, step.outputs["admitted"]) == (1, "false"), step.log
    assert "name both" in step.log
    known = await home.store.dispatch(body["client_payload"]["gateway"]["dispatch"])
    assert known is not None
    assert known.run is None
    step = await job.run(started_by(body), [old, changed.subscription.document])
    assert (step.code, step.outputs["admitted"]) == (0, "true"), step.log


async def test_no_token_is_printed(home: House, job: Job) -> None:
    step = await job.run(started_by(await home.sent()))
    lines = [line for line in step.log.splitlines() if not line.startswith("::add-mask::")]
    assert "eyJ" not in "".join(lines)
