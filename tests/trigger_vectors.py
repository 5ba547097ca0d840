"""Trigger vectors as cases: the files of `vectors/triggers/`, and what every trigger must withstand whatever it is about.

A case runs a whole body through reader and matcher, its proof taken as good. A near miss is an honest delivery that means
something else, or not all that is needed; a hostile one tries to pass as what it is not. `edits` lays pointers over the
trigger's body; `{"$gone": true}` removes. A case that does not fire may name the `test` and `pointer` of the explanation,
or the `reason` why the reader stopped it.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gateway import families
from gateway.compile import Target, compile_documents, encode
from gateway.declarations import load_connector
from gateway.delivery import RawDelivery
from gateway.explain import Explanation, explain
from gateway.frontmatter import load_yaml
from gateway.pointers import MISSING, parse, resolve
from gateway.profiles import Source, load_profile
from gateway.selections import Import
from gateway.structs import Value
from gateway.subscriptions import Enrolled, Index, build_index, load_subscription

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests/vectors/triggers").glob("*.json"))
TARGET = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64, 1)
KINDS = ("fires", "near-miss", "hostile")
GONE = {"$gone": True}
PROJECT_URL = "https://github.com/orgs/acme/projects/7?pane=issue&itemId={item}"


class Selected(Value):
    """One trigger as a consumer selects it: what its subscription is compiled of."""

    connector: str
    trigger: str
    profile: str
    on: str
    bindings: str  # JSON
    identity: str  # JSON
    url_template: str | None = None


@dataclass(frozen=True)
class Case:
    """One delivery for one trigger, and what must become of it."""

    selected: Selected
    kind: str
    why: str
    body: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...]
    url: str
    scope: Mapping[str, str]
    test: str | None = None
    pointer: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.selected.connector}:{self.selected.trigger}: {self.kind}: {self.why}"


def run(case: Case) -> Explanation:
    """Explain the case's delivery against its trigger alone."""
    raw = RawDelivery("01890a5d-ac96-774b-bcce-b302099a8057", "s", 1769860800.0, case.headers, b"", case.body)
    source, index = enrolled(case.selected)
    return explain(raw, source, index)


@lru_cache
def enrolled(selected: Selected) -> tuple[Source, Index]:
    """Compile and enroll a selection."""
    imports = []
    if selected.connector != families.CONNECTOR:
        path = ROOT / "subscriptions/connectors" / f"{selected.connector}.md"
        imports = [Import(load_connector(path.read_text(), path.name), json.loads(selected.bindings))]
    consumer = load_yaml(f"on: {{gateway-dispatch: {selected.on}}}", "c.md")
    [document] = compile_documents(consumer, imports, TARGET)
    one = Enrolled(load_subscription(encode(document), "d.json"), "s", 1, selected.url_template)
    identity = {name: tuple(values) for name, values in json.loads(selected.identity).items()}
    source = Source("s", load_profile(ROOT / "profiles" / f"{selected.profile}.yaml"), identity)
    index = build_index([one], {"s": source})
    assert not index.inactive, index.inactive
    return source, index


def cases() -> Iterator[Case]:
    """Every case of every file."""
    for file in FILES:
        document = json.loads(file.read_text())
        if document["connector"] == families.CONNECTOR:
            yield from _github(document)
        else:
            for name, row in document["triggers"].items():
                filters = f", filters: {json.dumps(row['filters'])}" if "filters" in row else ""
                on = f"{{{document['connector']}: {{triggers: [{name}]{filters}}}}}"
                selected = _selected(document, name, on, document["with"])
                yield from _of(selected, document, row, edit(document["body"], row["edits"]))


def _selected(document: Any, trigger: str, on: str, bindings: Any, template: str | None = None) -> Selected:
    identity, with_ = json.dumps(document["identity"]), json.dumps(bindings)
    return Selected(document["connector"], trigger, document["profile"], on, with_, identity, template)


def _github(document: Any) -> Iterator[Case]:
    for family, row in document["families"].items():
        for activity in families.FAMILIES[family].activities:
            projects = family == "projects-items"
            selector = "projects: [PVT_abc]" if projects else "repos: [acme/app]"
            on = f"{{{family}: {{types: [{activity}]}}, {selector}, orgs: [acme]}}"
            name = families.trigger_name(family, activity)
            selected = _selected(document, name, on, {}, PROJECT_URL if projects else None)
            scope = {"projects": "PVT_abc"} if projects else {"repositories": "acme/app"}
            body = document["body"] | row["body"] | {"action": activity}
            if projects:
                body = {member: value for member, value in body.items() if member != "repository"}
            headers = {"x-github-event": families.FAMILIES[family].event}
            full = row | {"scope": scope | {"organizations": "acme"}, "fires": [], "headers": headers}
            yield from _of(selected, document, full, body)
    row = document[families.SLASH_COMMAND] | {"headers": {"x-github-event": "issue_comment"}}
    on = "{slash-command: {names: [triage, plan]}, repos: [acme/app]}"
    selected = _selected(document, families.SLASH_COMMAND, on, {})
    yield from _of(selected, document, row, document["body"] | row["body"])


def _of(selected: Selected, document: Any, row: Any, body: Any) -> Iterator[Case]:
    rows = {
        "fires": [{"why": "as the provider sends it", "edits": {}}, *row["fires"]],
        "near-miss": [*row["near-miss"], *_near(selected, body)],
        "hostile": [*row["hostile"], *_hostile(selected, body, row)],
    }
    for kind in KINDS:
        for one in rows[kind]:
            yield Case(
                selected,
                kind,
                one["why"],
                one["raw"] if "raw" in one else dump(edit(body, one["edits"])),
                _pairs({**document["headers"], **row.get("headers", {}), **one.get("headers", {})}),
                one.get("url", row["url"]),
                row["scope"],
                one.get("test"),
                one.get("pointer"),
                one.get("reason"),
            )


def _near(selected: Selected, body: Any) -> Iterator[dict[str, Any]]:
    """What is needed, missing or null; what must be one value, another."""
    for pointer in scope_pointers(selected, body):
        yield {"why": f"{pointer} is missing", "edits": {pointer: GONE}}
        yield {"why": f"{pointer} is null", "edits": {pointer: None}}
    for pointer in match_pointers(selected, body):
        yield {"why": f"{pointer} is another", "edits": {pointer: "something-else"}}
        yield {"why": f"{pointer} is missing", "edits": {pointer: GONE}}


def _hostile(selected: Selected, body: Any, row: Any) -> Iterator[dict[str, Any]]:
    """Scope values and URLs in disguise, and bodies that two readers would read differently."""
    for pointer in scope_pointers(selected, body):
        for why, value in _disguises(resolve(body, parse(pointer))):
            yield {"why": f"{pointer} {why}", "edits": {pointer: value}}
    for pointer in _url_pointers(selected, body):
        for why, value in _foreign(row["url"]):
            yield {"why": f"{pointer} {why}", "edits": {pointer: value}}
    text = dump(body)
    first = next(iter(body))
    twice = b"{" + dump({first: None})[1:-1] + b"," + text[1:]
    deep = text[:-1] + b',"deep":' + b"[" * 200 + b"]" * 200 + b"}"
    yield {"why": "a member twice", "raw": twice, "reason": "json-duplicate-key"}
    yield {"why": "text after the end", "raw": text + b"{}", "reason": "json-syntax"}
    yield {"why": "no UTF-8", "raw": text[:-1] + b',"x":"\xff"}', "reason": "json-syntax"}
    yield {"why": "an array around it", "raw": b"[" + text + b"]", "reason": "json-shape"}
    yield {"why": "nested beyond the limit", "raw": deep, "reason": "json-depth"}
    yield {"why": "NaN", "raw": text[:-1] + b',"x":NaN}', "reason": "json-syntax|json-number"}


def _disguises(value: Any) -> Iterator[tuple[str, Any]]:
    yield "in a list", [value]
    yield "in an object", {"0": value}
    yield "is true", True
    if isinstance(value, str):
        yield "with a space behind it", value + " "
        yield "with a NUL behind it", value + "\x00"
        yield "with a look-alike in front", "\u200b" + value
        yield "with an accent of its own", value + "\u0301"
        yield "in wide letters", "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in value)
        yield "with escapes", "".join(f"%{byte:02X}" for byte in value.encode())
        yield "ten thousand times", value * 10_000
        if value.swapcase() != value:
            yield "in another case", value.swapcase()
    elif isinstance(value, int):
        yield "as a float", float(value)
        yield "beyond what a float holds", value + 2**60


def _foreign(url: str) -> Iterator[tuple[str, Any]]:
    host = url.removeprefix("https://").partition("/")[0]
    yield "at another host", url.replace(host, "evil.example", 1)
    yield "with the host as a user", url.replace(host, f"{host}@evil.example", 1)
    yield "with the host as a label", url.replace(host, f"{host}.evil.example", 1)
    yield "without encryption", url.replace("https:", "http:", 1)
    yield "as a script", "javascript:alert(1)"
    yield "with a backslash", url.replace("https://", "https:\\\\", 1)
    yield "with a line break", url + "\n"
    yield "in a list", [url]
    yield "empty", ""
    yield "with user information", url.replace("https://", "https://u:p@", 1)
    yield "at another port", url.replace(host, f"{host}:8443", 1)
    yield "with a dot behind the host", url.replace(host, f"{host}.", 1)
    yield "at a host that looks like it", url.replace(host, f"\u0430{host[1:]}", 1)
    yield "at that host in ASCII", url.replace(host, f"xn--{host}-k4f", 1)
    yield "at a subdomain", url.replace(host, f"a.{host}", 1)
    yield "with an encoded slash", url.replace(f"{host}/", f"{host}/%2F", 1)
    yield "with a step up", url.replace(f"{host}/", f"{host}/x/../", 1)
    yield "with an encoded step up", url.replace(f"{host}/", f"{host}/%2e%2E/", 1)
    yield "without a scheme", url.removeprefix("https:")
    yield "with a lone surrogate", url + "\ud800"


def scope_pointers(selected: Selected, body: Any) -> list[str]:
    """Where the granted values of the body stand. What is granted by a fact or an extraction is the files' business."""
    return _present(
        body,
        [
            form.normalize[name]
            for _, trigger in enrolled(selected)[1].listed("s")
            for name in trigger.resources
            for form in trigger.forms
            if name in form.normalize
        ],
    )


def match_pointers(selected: Selected, body: Any) -> list[str]:
    listed = enrolled(selected)[1].listed("s")
    return _present(body, [pointer for _, one in listed for form in one.forms for pointer, _, _ in form.match])


def _url_pointers(selected: Selected, body: Any) -> list[str]:
    """Where the URL of the resource itself is sent."""
    listed = enrolled(selected)[1].listed("s")
    found = [sent.reference for _, one in listed for form in one.forms for sent in form.urls if sent.template is None]
    return _present(body, [reference for reference in found if reference is not None])


def _present(body: Any, pointers: list[str]) -> list[str]:
    there = [one for one in pointers if one.startswith("/") and resolve(body, parse(one)) is not MISSING]
    return list(dict.fromkeys(there))


def edit(body: Any, edits: Mapping[str, Any]) -> Any:
    """Lay values over a body by pointer."""
    body = copy.deepcopy(body)
    for pointer, value in edits.items():
        *parents, last = parse(pointer)
        at = body
        for token in parents:
            at = at[int(token)] if isinstance(at, list) else at.setdefault(token, {})
        if value == GONE:
            at.pop(last, None)
        else:
            at[int(last) if isinstance(at, list) else last] = value
    return body


def dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _pairs(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode(), value.encode()) for name, value in headers.items())
