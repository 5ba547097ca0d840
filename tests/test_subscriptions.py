"""Compiling and loading: the same input gives the same document; an altered or wrong one never loads."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import canonical, families
from gateway.checkout import MAX_FILE_BYTES
from gateway.compile import Target, compile_documents, compile_file, encode
from gateway.declarations import load_connector
from gateway.errors import ConfigError
from gateway.frontmatter import load_yaml
from gateway.selections import Import
from gateway.subscriptions import REPOSITORY, event_type_for, load_subscription, seal

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "subscriptions/examples"
WORKFLOWS = EXAMPLES / ".github/workflows"
TARGET = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64, 1)
NAMES = [
    "github-issue-opened",
    "linear-issue-created",
    "slack-threaded-app-mention",
    "teams-channel-message-created",
    "confluence-page-created",
    "gitlab-merge-request-opened",
    "jira-issue-closed",
    "azure-devops-work-item-closed",
    "sentry-error-created",
    "servicenow-incident-updated",
]
LINEAR = {"workspace": "acme", "organizations": ["o"], "teams": ["t"]}


def compiled(on: str, target: Target = TARGET, **bindings: Any) -> tuple[dict[str, Any], ...]:
    imports = [
        Import(load_connector((ROOT / f"subscriptions/connectors/{name}.md").read_text(), f"{name}.md"), with_)
        for name, with_ in bindings.items()
    ]
    return compile_documents(load_yaml(on, "c.md"), imports, target)


def refused(on: str, target: Target = TARGET, **bindings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        compiled(on, target, **bindings)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_what_their_sources_compile_to(name: str) -> None:
    [document] = compile_file(WORKFLOWS / f"{name}.md", "acme/app", repository_id=1296269)
    assert encode(document) == (EXAMPLES / f"{name}.json").read_bytes()
    subscription = load_subscription(encode(document), name)
    assert subscription.digest == document["digest"]
    assert f"types: [{subscription.event_type}]" in (WORKFLOWS / f"{name}.lock.yml").read_text()


def test_the_examples_import_the_shipped_connectors() -> None:
    for path in (WORKFLOWS / "connectors").glob("*.md"):
        assert path.read_bytes() == (ROOT / "subscriptions/connectors" / path.name).read_bytes()


def test_event_types_follow_from_repository_and_path() -> None:
    one = event_type_for("acme/app", ".github/workflows/a.lock.yml")
    assert one == event_type_for("acme/app", ".github/workflows/a.lock.yml")
    assert len({one, event_type_for("acme/app2", ".github/workflows/a.lock.yml")}) == 2
    assert len(event_type_for("a/" + "b" * 100, f".github/workflows/{'c' * 140}.lock.yml")) <= 100


def test_a_managed_users_repository_is_one() -> None:
    assert REPOSITORY.match("mona_acme/app")
    assert not REPOSITORY.match("_acme/app")


def test_a_qualified_selection_lowers_to_the_same_document() -> None:
    [listed] = compiled("on: {gateway-dispatch: {linear: [issue-created]}}", linear=LINEAR)
    [mapped] = compiled("on: {gateway-dispatch: {linear: {triggers: [issue-created]}}}", linear=LINEAR)
    [qualified] = compiled("on: {linear-issue-created: null, roles: all}", linear=LINEAR)
    assert listed == mapped == qualified


def test_one_document_a_connector_with_one_event_type() -> None:
    documents = compiled(
        "on: {gateway-dispatch: {linear: [issue-created], gitlab: [pipeline-updated], issue: {types: [opened]}, repos: [a/b]}}",
        linear=LINEAR,
        gitlab={"projects": ["7"]},
    )
    assert [document["connector"] for document in documents] == ["gitlab", "linear", "github"]
    assert len({document["event_type"] for document in documents}) == 1


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("on: push", "selects no gateway-dispatch"),
        ("on: {gateway-dispatch: {linear: [issue-created]}, push: null}", "excludes all others"),
        ("on: {gateway-dispatch: {linear: [issue-created]}, workflow_dispatch: null}", "excludes all others"),
        ("on: {gateway-dispatch: {}}", "selects nothing"),
        ("on: {gateway-dispatch: [linear]}", "is no mapping"),
        ("on: {gateway-dispatch: {jira: [issue-created]}}", "no imported connector"),
        ("on: {gateway-dispatch: {linaer: [issue-created]}}", "write linear, if that is meant"),
        ("on: {gateway-dispatch: {issues: {types: [opened]}, repos: [a/b]}}", "write issue, if that is meant"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/b, c/d], orgs: [A]}}", "c/d is in none of orgs"),
        ("on: {gateway-dispatch: {issue: [opened], repos: [a/b]}}", "write issue: {types: [assigned]}"),
        ("on: {gateway-dispatch: {linear: []}}", "no nonempty list"),
        ("on: {gateway-dispatch: {linear: [issue-created, issue-created]}}", "distinct"),
        ("on: {gateway-dispatch: {linear: [nothing]}}", "is no trigger of it"),
        (
            "on: {gateway-dispatch: {linear: {triggers: [issue-created], filter: {}}}}",
            "linear.filter: line 1: is no member",
        ),
        (
            "on: {gateway-dispatch: {linear: {triggers: [issue-created], filters: {labels: [a]}}}}",
            "use one of issues, projects",
        ),
        ("on: {gateway-dispatch: {linear: {triggers: [issue-created], filters: {teams: [t]}}}}", "no such filter"),
        ("on: {gateway-dispatch: {linear: {triggers: [issue-created], filters: {projects: []}}}}", "is empty"),
        ("on: {linear-issue-created: {filters: {projects: [p]}}}", "has options"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}}}", "has no scope"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}, projects: [PVT_a]}}", "has no scope"),
        ("on: {gateway-dispatch: {projects-items: {types: [edited]}, repos: [a/b]}}", "has no scope"),
        ("on: {gateway-dispatch: {issue: {types: [nothing]}, repos: [a/b]}}", "no activity"),
        ("on: {gateway-dispatch: {pull-request: {types: [ready-for-review]}, repos: [a/b]}}", "GitHub's spelling"),
        ("on: {gateway-dispatch: {issue: null, repos: [a/b]}}", "types"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/*]}}", "exact values"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}, repos: []}}", "exact values"),
        ("on: {gateway-dispatch: {slash-command: {names: [/x]}, repos: [a/b]}}", "without the slash"),
        ("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/b], projects: [PVT_a]}}", "scopes no selected"),
        ("on: {gateway-dispatch: {repos: [a/b]}}", "scopes no selected"),
    ],
)
def test_wrong_consumers_are_refused(on: str, words: str) -> None:
    assert words in refused(on, linear=LINEAR)


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (Target("acme", TARGET.workflow, TARGET.workflow_hash), "--repo"),
        (Target("acme/app", "workflows/a.yml", TARGET.workflow_hash), "--workflow"),
        (Target("acme/app", TARGET.workflow, "sha256:0"), "--workflow-hash"),
        (Target("acme/app", TARGET.workflow, TARGET.workflow_hash, 0), "--repository-id"),
        (Target("acme/app", TARGET.workflow, TARGET.workflow_hash, None, "http://x"), "--origin"),
    ],
)
def test_wrong_targets_are_refused(target: Target, key: str) -> None:
    assert f"c.md: {key}: " in refused("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/b]}}", target)


def test_a_document_has_a_size() -> None:
    on = f"on: {{gateway-dispatch: {{issue: {{types: [opened]}}, repos: [{', '.join(f'a/{n:060}' for n in range(1000))}]}}}}"
    assert "more than 65536 bytes" in refused(on)


def test_the_size_is_exact_to_the_byte() -> None:
    def consumer(count: int, last: str) -> str:
        names = [*(f"a/{n:060}" for n in range(count)), last]
        return f"on: {{gateway-dispatch: {{issue: {{types: [opened]}}, repos: [{', '.join(names)}]}}}}"

    def size(count: int) -> int:
        return len(encode(compiled(consumer(count, "b/c"))[0]))

    count = (65_536 - size(0)) // (size(2) - size(1))
    room = 65_536 - size(count)
    assert 0 <= room < 99
    [document] = compiled(consumer(count, "b/c" + "c" * room))
    assert len(encode(document)) == 65_536
    assert load_subscription(encode(document), "d.json").digest == document["digest"]
    assert "select fewer triggers or grants" in refused(consumer(count, "b/cc" + "c" * room))


def test_no_credential_and_no_name_of_one_is_in_a_document(tmp_path: Path) -> None:
    text = (ROOT / "subscriptions/connectors/linear.md").read_text()
    section = (
        "    endpoints: {api: https://api.planted.example}\n"
        "    credentials: {reader: {phase: agent, header: Authorization, scheme: bearer, scopes: [read],"
        " token: {secret: PLANTED_SECRET_NAME}}}\n    resources:\n"
    )
    connector = load_connector(text.replace("    resources:\n", section, 1), "linear.md")
    [document] = compile_documents(
        load_yaml("on: {gateway-dispatch: {linear: [issue-created]}}", "c.md"), [Import(connector, LINEAR)], TARGET
    )
    assert b"planted" not in encode(document).lower()
    assert b"credential" not in encode(document).lower()


def test_importing_selects_nothing() -> None:
    assert "selects nothing" in refused("on: {gateway-dispatch: {}}", linear=LINEAR)
    [document] = compiled(
        "on: {gateway-dispatch: {linear: [issue-created]}}", linear=LINEAR, gitlab={"projects": ["7"]}
    )
    assert (document["connector"], list(document["triggers"])) == ("linear", ["issue-created"])


def test_filters_are_lowered_and_kept() -> None:
    [document] = compiled(
        "on: {gateway-dispatch: {gitlab: {triggers: [pipeline-updated], filters: {statuses: [failed]}}}}",
        gitlab={"projects": ["7"]},
    )
    assert (document["grants"], document["filters"]) == ({"projects": [7]}, {"statuses": ["failed"]})


def test_an_origin_is_frozen_for_ghes() -> None:
    target = Target("acme/app", TARGET.workflow, TARGET.workflow_hash, None, "https://ghe.acme.example")
    [document] = compiled("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/b]}}", target)
    trigger = document["triggers"]["issue-opened"]
    assert trigger["canonicalUrl"] == "https://ghe.acme.example/{+repository}/issues/{number}"
    assert trigger["resourceOrigins"] == ["https://ghe.acme.example"]


def test_every_family_and_activity_compiles() -> None:
    for family, row in families.FAMILIES.items():
        scope = "projects: [PVT_a]" if family == "projects-items" else "repos: [a/b]"
        [document] = compiled(
            f"on: {{gateway-dispatch: {{{family}: {{types: [{', '.join(row.activities)}]}}, {scope}}}}}"
        )
        assert len(document["triggers"]) == len(row.activities)


def sealed(document: dict[str, Any]) -> bytes:
    content = {key: value for key, value in document.items() if key != "digest"}
    return encode({**content, "digest": canonical.digest(content)})


@pytest.fixture
def document() -> dict[str, Any]:
    [made] = compiled("on: {gateway-dispatch: {linear: [issue-created]}}", linear=LINEAR)
    return made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 3}, "version: is not 2"),
        ({"version": True}, "version"),
        ({"projection": "x"}, "projection"),
        ({"predicates": "gh-aw/event-predicates/v2"}, "predicates"),
        ({"repository": "acme"}, "repository"),
        ({"repository": "acme/.."}, "repository"),
        ({"repository": "acme/."}, "repository"),
        ({"repository_id": "1"}, "repository_id"),
        ({"repository_id": True}, "repository_id"),
        ({"workflow": "../x.yml"}, "workflow"),
        ({"workflow_hash": "sha256:0"}, "workflow_hash"),
        ({"event_type": "other"}, "event_type"),
        ({"grants": {"organizations": [], "teams": ["t"]}}, "grants"),
        ({"grants": {"organizations": ["o"]}}, "teams is not granted"),
        ({"grants": {"organizations": [True], "teams": ["t"]}}, "grants"),
        ({"filters": {"labels": ["x"]}}, "no trigger has the filter"),
        ({"triggers": {}}, "triggers"),
        ({"triggers": {"issue-created": {"resources": {}}}}, "triggers.issue-created"),
        ({"triggers": {"issue-created": []}}, "triggers.issue-created"),
        ({"extra": 1}, "extra: is unknown"),
    ],
)
def test_a_wrong_document_never_loads_even_with_a_fitting_digest(
    document: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="compile it again"):
        load_subscription(sealed(document | change), "d.json")
    with pytest.raises(ConfigError) as caught:
        load_subscription(sealed(document | change), "d.json")
    assert words in str(caught.value)


def test_a_document_without_a_canonical_form_has_no_digest(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="digest: does not match"):
        load_subscription(encode(document | {"grants": {**document["grants"], "teams": [2**60]}}), "d.json")


def test_projects_may_stand_inside_their_family() -> None:
    inside = compiled("on: {gateway-dispatch: {projects-items: {types: [edited], projects: [PVT_a]}}}")
    assert inside == compiled("on: {gateway-dispatch: {projects-items: {types: [edited]}, projects: [PVT_a]}}")
    assert inside[0]["grants"] == {"projects": ["PVT_a"]}


def test_an_altered_document_never_loads(document: dict[str, Any]) -> None:
    altered = encode(document | {"grants": {"organizations": ["o"], "teams": ["t", "u"]}})
    for data, words in (
        (altered, "digest: does not match"),
        (b"{", "no strict JSON"),
        (b'{"version": 2, "version": 2}', "json-duplicate-key"),
        (b"[]", "no JSON object"),
        (b" " * 65_537, "larger than"),
        (encode({key: value for key, value in document.items() if key != "grants"}), "grants: is missing"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_subscription(data, "d.json")


# ---- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / ".github", tmp_path / ".github")
    return tmp_path / ".github/workflows"


def file_problems(consumer: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        compile_file(consumer, "acme/app", **options)
    return str(caught.value)


def test_a_plain_workflow_is_named(checkout: Path) -> None:
    (checkout / "plain.yml").write_text("name: plain\n")
    consumer = checkout / "linear-issue-created.md"
    [document] = compile_file(consumer, "acme/app", workflow=".github/workflows/plain.yml")
    assert document["workflow"] == ".github/workflows/plain.yml"
    assert document["event_type"].startswith("gateway-plain-")


def test_a_repository_opts_in(checkout: Path) -> None:
    consumer = checkout / "linear-issue-created.md"
    for content in (
        "{}",
        '{"gateway-dispatch": "true"}',
        "[]",
    ):
        (checkout / "aw.json").write_text(content)
        assert "has not opted in" in file_problems(consumer)
    for content in ("{", '{"gateway-dispatch": true, "gateway-dispatch": true}'):
        (checkout / "aw.json").write_text(content)
        assert "aw.json: : is no strict JSON" in file_problems(consumer)
    (checkout / "aw.json").unlink()
    assert "has not opted in" in file_problems(consumer)


def test_one_cause_is_one_problem(checkout: Path) -> None:
    """A connector that cannot be read is not reported a second time as one that is not imported, nor a broken selector as none."""
    consumer = checkout / "linear-issue-created.md"
    connector = checkout / "connectors/linear.md"
    text = connector.read_text()
    for broken in (text.replace("nativeEvents", "nativeEvent", 1), text.replace("---", "", 1), None):
        if broken is None:
            connector.unlink()
        else:
            connector.write_text(broken)
        with pytest.raises(ConfigError) as caught:
            compile_file(consumer, "acme/app")
        assert {Path(problem.file).name for problem in caught.value.problems} == {"linear.md"}
    assert refused("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [b]}}").count("line 1") == 1


def test_what_was_left_to_fill_in_is_refused(checkout: Path) -> None:
    consumer = checkout / "linear-issue-created.md"
    consumer.write_text(re.sub(r"teams: .*", 'teams: ["..."]', consumer.read_text()))
    at = consumer.read_text().splitlines().index('      teams: ["..."]') + 1
    assert f"imports.linear.with.teams: line {at}: is still the placeholder" in file_problems(consumer)


def test_an_empty_workflow_is_refused(checkout: Path) -> None:
    (checkout / "linear-issue-created.lock.yml").write_text("\n")
    assert "linear-issue-created.lock.yml is empty" in file_problems(checkout / "linear-issue-created.md")


def test_every_problem_of_a_checkout_at_once(checkout: Path) -> None:
    (checkout / "aw.json").unlink()
    (checkout / "linear-issue-created.lock.yml").unlink()
    consumer = checkout / "linear-issue-created.md"
    consumer.write_text(consumer.read_text().replace("[issue-created]", "[nothing]"))
    found = file_problems(consumer)
    assert "has not opted in" in found
    assert "cannot be read" in found
    assert "nothing is no trigger" in found


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ("../connectors/linear.md", "not inside .github/"),
        (".github/../linear.md", "not inside .github/"),
        (".github/workflows/connectors/none.md", "cannot be read"),
        ("acme/connectors/linear.md@main", "no imported connector"),
        (".github/link.md", "not inside .github/"),
    ],
)
def test_imports_stay_inside(checkout: Path, uses: str, words: str) -> None:
    outside = checkout.parent.parent / "linear.md"
    shutil.copy(checkout / "connectors/linear.md", outside)
    (checkout.parent / "link.md").symlink_to(outside)
    consumer = checkout / "linear-issue-created.md"
    consumer.write_text(consumer.read_text().replace(".github/workflows/connectors/linear.md", uses))
    assert words in file_problems(consumer)


@pytest.mark.parametrize("name", ["aw.json", "linear-issue-created.lock.yml", "connectors/linear.md"])
@pytest.mark.parametrize("kind", ["pipe", "device", "outside", "loop", "folder", "large"])
def test_a_checkout_is_read_as_plain_files_of_its_own(checkout: Path, name: str, kind: str) -> None:
    """Whoever commits to a repository also commits links: reading /dev/zero or a pipe would never end."""
    consumer, file = checkout / "linear-issue-created.md", checkout / name
    content = file.read_bytes()
    file.unlink()
    outside = checkout.parent.parent.parent / f"outside-{checkout.parent.parent.name}"
    outside.write_bytes(content)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "large":
        file.write_bytes(content + b" " * MAX_FILE_BYTES)
    else:
        file.symlink_to({"device": "/dev/zero", "outside": str(outside), "loop": file.name}[kind])
    found = file_problems(consumer)
    assert any(words in found for words in ("has not opted in", "cannot be read", "leads out", "not inside .github/"))
    outside.unlink()


def test_a_connector_is_imported_once(checkout: Path) -> None:
    consumer = checkout / "linear-issue-created.md"
    uses = "  - .github/workflows/connectors/linear.md\n"
    consumer.write_text(consumer.read_text().replace("imports:\n", "imports:\n" + uses))
    assert "imported twice" in file_problems(consumer)


def test_an_experimental_connector_is_told_where_it_is_selected(checkout: Path) -> None:
    told: list[str] = []
    compile_file(checkout / "linear-issue-created.md", "acme/app", warn=told.append)
    assert len(told) == 1
    assert told[0].endswith("connectors/linear.md: linear is experimental; its triggers may change")
    compile_file(checkout / "github-issue-opened.md", "acme/app", warn=told.append)
    assert len(told) == 1


def test_documents_are_stable_bytes(document: dict[str, Any]) -> None:
    assert json.loads(encode(document)) == document
    assert encode(document).endswith(b"}\n")


# ---- any bytes, and any change ----------------------------------------------------------------------------------------

EXAMPLE_BYTES = sorted(EXAMPLES.glob("*.json"))


@settings(max_examples=400)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_with_config_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        load_subscription(data, "d.json")


@settings(max_examples=1500)
@given(st.sampled_from(EXAMPLE_BYTES), st.data())
def test_one_changed_byte_is_refused_or_changes_nothing(path: Path, data: st.DataObject) -> None:
    """A space that became a tab says the same document, with the same digest; whatever says another one is refused."""
    original = path.read_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255) | st.sampled_from(b'"{}[],:0a\\ '))
    kind = data.draw(st.sampled_from(["replace", "remove", "insert"]))
    changed = original[:at] + (b"" if kind == "remove" else bytes([byte])) + original[at + (kind != "insert") :]
    try:
        found = load_subscription(changed, "d.json")
    except ConfigError:
        return
    assert found.document == json.loads(original)
    assert json.loads(changed) == json.loads(original)  # a slash may be written with a backslash before it


VALUES = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 2**53 + 1, 1.5, "", "a", "/a", "{a}", "@a", "\ud800", "string", "https://x.example"]
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "from", "/a", "equals"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=2000)
@given(st.sampled_from(EXAMPLE_BYTES), st.data())
def test_a_rewritten_document_with_a_fitting_digest_loads_or_is_refused(path: Path, data: st.DataObject) -> None:
    document = json.loads(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at: Any = document
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.integers(0, 3)) == 0:
                break
            at = at[key]
        if data.draw(st.booleans()):
            at[key] = data.draw(VALUES)
        elif isinstance(at, dict):
            at[data.draw(st.sampled_from(["url", "variants", "when", "literals", "extract", "types", "normalize"]))] = (
                data.draw(VALUES)
            )
    content = {key: value for key, value in document.items() if key != "digest"}
    try:
        bound = seal(content)
    except ValueError:
        bound = document
    try:
        found = load_subscription(json.dumps(bound).encode(), "d.json")
    except ConfigError as error:
        assert all(problem.problem and problem.fix for problem in error.problems)  # noqa: PT017 (either end is good)
    else:
        assert found.triggers


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("url", 7),
        ("url", ["x"]),
        ("normalize", []),
        ("types", "x"),
        ("match", []),
        ("filters", []),
        ("variants", {}),
        ("variants", []),
    ],
)
def test_a_trigger_of_the_wrong_shape_names_its_field(document: dict[str, Any], member: str, value: Any) -> None:
    trigger = document["triggers"]["issue-created"]
    with pytest.raises(ConfigError, match=f"triggers.issue-created: .*{member}"):
        load_subscription(sealed(document | {"triggers": {"issue-created": trigger | {member: value}}}), "d.json")
