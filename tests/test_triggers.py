"""Every trigger: it fires on exactly its evidence, and on nothing that only looks like it."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway import families
from gateway.app import project
from gateway.cli.connectors import load_connectors
from gateway.compile import encode
from gateway.delivery import Outcome, RawDelivery
from gateway.errors import ConfigError, Rejection
from gateway.events import read
from gateway.match import match
from gateway.pointers import parse, resolve
from gateway.profiles import Source
from gateway.structs import replace
from gateway.subscriptions import Enrolled, Index, build_index, load_subscription, seal
from gateway.verify import assumed
from tests.trigger_vectors import FILES, KINDS, Case, cases, dump, enrolled, match_pointers, run, scope_pointers

NAMES = {
    "linear": "issue-created issue-updated issue-removed issue-closed issue-reopened issue-labeled issue-unlabeled",
    "jira": "issue-created issue-updated issue-deleted issue-closed issue-reopened issue-labeled issue-unlabeled",
    "azure-devops": "work-item-created work-item-updated work-item-deleted work-item-restored work-item-closed"
    " work-item-reopened work-item-labeled work-item-unlabeled",
    "slack": "threaded-app-mention",
    "teams": "channel-message-created",
    "confluence": "page-created page-updated",
    "sentry": "error-created error-regressed issue-alert-triggered",
    "servicenow": "incident-updated requested-item-updated",
    "gitlab": "merge-request-opened pipeline-updated",
}
ALL = list(cases())


def test_every_named_trigger_is_shipped_and_no_other() -> None:
    shipped = {name: sorted(one.triggers) for name, one in load_connectors().items()}
    assert shipped == {name: sorted(triggers.split()) for name, triggers in NAMES.items()}


def test_every_trigger_has_vectors_of_each_kind() -> None:
    wanted = {(connector, name) for connector, triggers in NAMES.items() for name in triggers.split()}
    wanted |= {("github", families.trigger_name(f, a)) for f, row in families.FAMILIES.items() for a in row.activities}
    wanted.add(("github", families.SLASH_COMMAND))
    counts = Counter((case.selected.connector, case.selected.trigger, case.kind) for case in ALL)
    assert {(connector, trigger) for connector, trigger, _ in counts} == wanted
    for connector, trigger in wanted:
        assert all(counts[connector, trigger, kind] for kind in KINDS), (connector, trigger)


def test_every_file_cites_the_provider() -> None:
    for file in FILES:
        document = json.loads(file.read_text())
        assert document["docs"], file
        assert all(url.startswith("https://") for url in document["docs"]), file


@pytest.mark.parametrize("case", [case for case in ALL if case.kind == "fires"], ids=str)
def test_fires(case: Case) -> None:
    found = run(case)
    assert (found.outcome, found.reason) == (Outcome.FORWARDED, None), found
    source, index = enrolled(case.selected)
    raw = RawDelivery("d", "s", 1769860800.0, case.headers, b"", case.body)
    [event] = read(assumed(raw, source), source, index.wanted("s"), 1769860800.0).events
    [one], _ = match(event, source, index)
    assert (one.event.type, one.event.url, one.event.filters) == (case.selected.trigger, case.url, case.scope)
    [item] = project(raw, [(event, (one,))], (), 0.0).items
    assert len(item.entries) == 1


@pytest.mark.parametrize("case", [case for case in ALL if case.kind != "fires"], ids=str)
def test_does_not_fire(case: Case) -> None:
    found = run(case)
    assert found.outcome != Outcome.FORWARDED, found
    assert not any(one.matched for _, one in found.considered)
    if case.reason is not None:
        assert found.reason in case.reason.split("|"), found
    if case.test is not None or case.pointer is not None:
        [(_, one)] = found.considered
        assert case.test in (None, one.test), one
        assert case.pointer in (None, one.pointer), one


def test_the_vectors_are_of_shipped_connectors() -> None:
    assert {file.stem for file in FILES} == {*NAMES, families.CONNECTOR}


# ---- whatever is done to the evidence ---------------------------------------------------------------------------------

FIRING = [case for case in ALL if case.kind == "fires"]


def found(case: Case, body: Any, index: Index | None = None) -> list[tuple[str, str, dict[str, str]]]:
    """Return (type, url, scope) of every match of a body, none where the reader stops it."""
    source, own = enrolled(case.selected)
    index = index or own
    raw = RawDelivery("d", "s", 1769860800.0, case.headers, b"", dump(body))
    try:
        events = read(assumed(raw, source), source, index.wanted("s"), 1769860800.0).events
    except Rejection:
        return []
    matches = [one for event in events for one in match(event, source, index)[0]]
    return [(one.event.type, one.event.url, dict(one.event.filters)) for one in matches]


def places(body: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    members = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in members:
        yield (*at, str(key))
        yield from places(value, (*at, str(key)))


RETYPED: list[Callable[[Any], Any]] = [
    lambda _: None,
    lambda _: True,
    lambda value: [value],
    lambda value: {"id": value},
    lambda value: str(value) if isinstance(value, int) else value,
    lambda value: int(value) if isinstance(value, str) and value.isdecimal() else True,
    lambda value: float(value) if isinstance(value, int) else 1.5,
    lambda _: "\ud800",
    lambda _: "",
]
NEEDED = [
    (case, pointer)
    for case in FIRING
    for pointers in (scope_pointers, match_pointers)
    for pointer in pointers(case.selected, json.loads(case.body))
]


def done_to(data: st.DataObject, body: Any) -> Any:
    """Delete, retype, rename or double one member of a body."""
    # without its mark of a pull request an issue is another thing, with a URL of its own: no evidence is missing there
    at = data.draw(st.sampled_from(sorted(place for place in places(body) if place[:2] != ("issue", "pull_request"))))
    parent = resolve(body, at[:-1])
    key: Any = int(at[-1]) if isinstance(parent, list) else at[-1]
    what = data.draw(st.sampled_from(["delete", "retype", "rename", "double"]))
    if what == "retype":
        parent[key] = data.draw(st.sampled_from(RETYPED))(parent[key])
    elif isinstance(parent, list):
        parent[key : key + 1] = [parent[key]] * (2 if what == "double" else 0)
    elif what == "double":
        parent[key] = [parent[key], parent[key]]
    else:
        value = parent.pop(key)
        if what == "rename":
            parent[data.draw(st.sampled_from([f"{key}_", key.upper(), key[:-1], f" {key}"]))] = value
    return body


@settings(max_examples=3000)
@given(st.data())
def test_no_evidence_that_is_gone_mistyped_or_doubled_matches_under_another_url(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(FIRING))
    body = json.loads(case.body)
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            body = done_to(data, body)
    for type_, url, scope in found(case, body):
        assert (type_, url, scope) == (case.selected.trigger, case.url, case.scope)


@settings(max_examples=1000)
@given(st.sampled_from(NEEDED), st.booleans())
def test_scope_and_exact_members_that_are_gone_or_renamed_never_match(needed: tuple[Case, str], renamed: bool) -> None:
    case, pointer = needed
    *parents, last = parse(pointer)
    body = json.loads(case.body)
    parent = resolve(body, tuple(parents))
    value = parent.pop(last)
    if renamed:
        parent[last + "2"] = value
    assert found(case, body) == []


def narrowed(one: Enrolled, grants: Any, filters: Any, source: Source) -> Index:
    content = {key: value for key, value in one.subscription.document.items() if key != "digest"}
    document = seal({**content, "grants": grants, "filters": filters})
    return build_index([replace(one, subscription=load_subscription(encode(document), "d.json"))], {"s": source})


SINGLE = [case for case in FIRING if len(enrolled(case.selected)[1].listed("s")) == 1]


@settings(max_examples=600)
@given(st.data())
def test_a_grant_or_a_filter_only_ever_narrows(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SINGLE))
    source, index = enrolled(case.selected)
    [(one, trigger)] = index.listed("s")
    document = one.subscription.document
    body = json.loads(case.body)
    if data.draw(st.booleans()):
        body = done_to(data, body)
    said = [resolve(body, at) for at in sorted(places(body))]
    values = ["other", "7", 7, *(one for one in said if one and type(one) in (str, int) and one != "\ud800")]
    some = st.lists(st.sampled_from(values), min_size=1, max_size=3)
    wide = {name: granted + data.draw(some) for name, granted in document["grants"].items()}
    assume(one.url_template is None or wide == document["grants"])
    collections = [name for name in trigger.filters if name not in document["filters"]]
    chosen = data.draw(st.lists(st.sampled_from(collections), unique=True)) if collections else []
    filters = dict(document["filters"]) | {name: data.draw(some) for name in chosen}
    before = found(case, body, narrowed(one, wide, document["filters"], source))
    own = found(case, body)
    after = found(case, body, narrowed(one, document["grants"], filters, source))
    assert {url for _, url, _ in own} <= {url for _, url, _ in before}
    assert {url for _, url, _ in after} <= {url for _, url, _ in own}
    for _, _, scope in after:
        assert set(scope) == {*trigger.resources.values(), *filters}
        assert all(value in map(str, document["grants"][name]) for name, value in scope.items() if name not in filters)
        assert all(scope[name] in map(str, allowed) for name, allowed in filters.items())


@settings(max_examples=300)
@given(st.sampled_from(FIRING), st.data())
def test_an_index_over_many_finds_what_one_finds(case: Case, data: st.DataObject) -> None:
    source, index = enrolled(case.selected)
    [(one, _), *_] = index.listed("s")
    body = done_to(data, json.loads(case.body))
    content = {key: value for key, value in one.subscription.document.items() if key != "digest"}
    others = [
        replace(one, subscription=load_subscription(encode(seal({**content, "repository_id": number})), "d.json"))
        for number in (2, 3)
    ]
    urls = Counter(url for _, url, _ in found(case, body, build_index([*others, one], {"s": source})))
    assert urls == Counter({url: 3 * count for url, count in Counter(url for _, url, _ in found(case, body)).items()})


# ---- what the shipped connectors grant, spell out and filter ----------------------------------------------------------

# connector: (profiles, what is granted, what its URLs spell out, filters)
SHAPES: dict[str, tuple[list[str], dict[str, str], dict[str, str | None], dict[str, str]]] = {
    "linear": (
        ["linear"],
        {"organization": "organizations", "team": "teams"},
        {"workspace": "organizations"},
        {"projects": "project", "issues": "issue"},
    ),
    "jira": (["jira"], {"project": "projects"}, {"site": None}, {"issues": "issue"}),
    "azure-devops": (
        ["azure-devops"],
        {"collection": "collections", "project": "projects"},
        {"origin": "collections"},
        {"items": "item"},
    ),
    "slack": (
        ["slack"],
        {"workspace": "workspaces", "app": "apps", "channel": "channels", "thread": "threads"},
        {"origin": "workspaces"},
        {},
    ),
    "teams": (["microsoft-graph"], {"tenant": "tenants", "team": "teams", "channel": "channels"}, {}, {}),
    "confluence": (["forge"], {"cloud": "clouds", "space": "spaces"}, {"site": "clouds"}, {"pages": "page"}),
    "sentry": (["sentry"], {"project": "projects"}, {"organization": "@installation"}, {"issues": "issue"}),
    "servicenow": (
        ["servicenow"],
        {"instance": "instances", "record": "records"},
        {"instances": "instances"},
        {},
    ),
    "gitlab": (["gitlab-token", "gitlab-signing"], {"project": "projects"}, {"origin": None}, {"statuses": "status"}),
}
WITHOUT_FILTER = {("confluence", "page-created"), ("gitlab", "merge-request-opened")}
FIRST = {(one.selected.connector, one.selected.trigger): one for one in reversed(FIRING)}


@pytest.mark.parametrize("name", SHAPES)
def test_each_connector_has_its_profiles_grants_literals_and_filters(name: str) -> None:
    profiles, resources, literals, filters = SHAPES[name]
    for trigger, raw in load_connectors()[name].triggers.items():
        lowered = raw["verificationProfile"]
        assert (lowered if isinstance(lowered, list) else [lowered]) == profiles
        assert (raw["resources"], raw.get("literals", {})) == (resources, literals)
        assert raw.get("filters", {}) == ({} if (name, trigger) in WITHOUT_FILTER else filters), trigger


SPELLED_OUT = [(name, collection) for name, row in SHAPES.items() for collection in row[2].values() if collection]


@pytest.mark.parametrize(("name", "collection"), [pair for pair in SPELLED_OUT if not pair[1].startswith("@")], ids=str)
def test_what_a_url_spells_out_is_one_value(name: str, collection: str) -> None:
    """Two workspaces under the name of one would give a URL of the wrong one."""
    case = next(one for (connector, _), one in FIRST.items() if connector == name)
    bindings = json.loads(case.selected.bindings)
    several = bindings | {collection: [*bindings[collection], "another"]}
    with pytest.raises(ConfigError, match=r"one subscription each|exactly one value"):
        enrolled(replace(case.selected, bindings=json.dumps(several)))


@pytest.mark.parametrize("name", ["jira", "gitlab"])
def test_what_nothing_granted_stands_for_leaves_the_grant_alone(name: str) -> None:
    case = next(one for (connector, _), one in FIRST.items() if connector == name)
    bindings = json.loads(case.selected.bindings)
    several = bindings | {"projects": [*bindings["projects"], "16"]}
    _, index = enrolled(replace(case.selected, bindings=json.dumps(several)))
    assert found(case, json.loads(case.body), index) == [(case.selected.trigger, case.url, dict(case.scope))]


FILTERED = [
    (case, collection, name)
    for (connector, trigger), case in FIRST.items()
    if connector in SHAPES and (connector, trigger) not in WITHOUT_FILTER
    for collection, name in SHAPES[connector][3].items()
]


@pytest.mark.parametrize(("case", "collection", "name"), FILTERED, ids=str)
def test_each_filter_lets_its_value_through_and_no_other(case: Case, collection: str, name: str) -> None:
    connector, trigger = case.selected.connector, case.selected.trigger
    body = json.loads(case.body)
    [(_, compiled)] = enrolled(case.selected)[1].listed("s")
    said = {resolve(body, parse(form.normalize[name])) for form in compiled.forms if name in form.normalize}
    [value] = {one for one in said if isinstance(one, str | int)}

    def filtered(*wanted: str) -> list[tuple[str, str, dict[str, str]]]:
        on = f"{{{connector}: {{triggers: [{trigger}], filters: {{{collection}: {json.dumps(wanted)}}}}}}}"
        return found(case, body, enrolled(replace(case.selected, on=on))[1])

    scope = {key: one for key, one in case.scope.items() if key not in SHAPES[connector][3]}
    hit = [(trigger, case.url, scope | {collection: str(value)})]
    assert filtered(str(value)) == hit
    assert filtered("7001", str(value)) == hit
    assert filtered("7001") == []


def test_closed_and_reopened_need_the_states_that_are_terminal() -> None:
    case = FIRST["azure-devops", "work-item-closed"]
    bindings = {key: one for key, one in json.loads(case.selected.bindings).items() if key != "closed-states"}
    for trigger in ("work-item-closed", "work-item-reopened"):
        on = f"{{azure-devops: [{trigger}]}}"
        without: list[dict[str, list[str]]] = [{}, {"closed-states": []}]
        for states in without:
            with pytest.raises(ConfigError, match=r"at least one literal|not bound"):
                enrolled(replace(case.selected, trigger=trigger, on=on, bindings=json.dumps(bindings | states)))
    enrolled(replace(case.selected, on="{azure-devops: [work-item-updated]}", bindings=json.dumps(bindings)))
