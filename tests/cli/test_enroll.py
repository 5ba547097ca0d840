"""Enroll, revoke, list, compile --check: files and exit codes, with GitHub played by its double."""

import json
import shutil
import tomllib
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from gateway import enrolling
from gateway.audit import KEPT
from gateway.cli import main
from gateway.cli.subscriptions import lines
from gateway.compile import encode
from gateway.configuration import load_configuration
from gateway.enrollments import Row
from gateway.subscriptions import event_type_for, load_subscription, seal
from gateway.words import RESUME, SETTLED
from tests.cli.desk import DIGEST, EXAMPLES, LINEAR, Desk

DOCUMENT = json.loads(LINEAR.read_bytes())
GITHUB = EXAMPLES / "github-issue-opened.json"


def test_enroll_copies_the_document_and_writes_its_entry(desk: Desk) -> None:
    result = desk.enroll()
    assert result.exit_code == 0, result.output
    assert (desk.enrolled / LINEAR.name).read_bytes() == LINEAR.read_bytes()
    entry = {"subscription": DIGEST, "source": "linear-acme", "installation": 5001}
    assert tomllib.loads((desk.enrolled / "linear-issue-created.toml").read_text()) == {"enrollments": [entry]}
    [row] = desk.rows()
    assert (row["digest"], row["source"], row["repository"], row["state"], row["reason"]) == (
        DIGEST,
        "linear-acme",
        "acme/app",
        "active",
        None,
    )


def test_enrolling_before_the_first_start_says_when_it_is_compared(desk: Desk) -> None:
    assert "compared with the default branch when the gateway starts" in desk.enroll().stderr


def test_what_is_attested_is_listed_and_in_the_audit_trail_as_such(desk: Desk) -> None:
    assert desk.enroll(LINEAR, "linear-acme", "--attested").exit_code == 0
    [row] = desk.rows()
    assert row["attested"] is True
    assert "attested" in desk.run("subscriptions").output
    [noted] = [json.loads(line) for line in (desk.enrolled / KEPT).read_text().splitlines()]
    assert noted["attested"] is True


def test_enrolling_again_changes_nothing_and_keeps_options(desk: Desk) -> None:
    assert desk.enroll(LINEAR, "linear-acme", "--mode", "ask", "--attested").exit_code == 0
    first = (desk.enrolled / "linear-issue-created.toml").read_text()
    for file in (LINEAR, desk.enrolled / LINEAR.name):
        result = desk.enroll(file)
        assert result.exit_code == 0, result.output
        assert "already" in result.output
        assert (desk.enrolled / "linear-issue-created.toml").read_text() == first
    renamed = desk.folder / "other-name.json"
    shutil.copy(LINEAR, renamed)
    assert desk.enroll(renamed).exit_code == 0
    assert sorted(file.name for file in desk.files()) == [
        "linear-issue-created.json",
        "linear-issue-created.toml",
    ]
    assert desk.enroll(LINEAR, "linear-acme", "--mode", "auto", "--not-attested").exit_code == 0
    assert "mode" not in (desk.enrolled / "linear-issue-created.toml").read_text()


def test_an_entry_of_the_configuration_file_stands(desk: Desk) -> None:
    entry = f'[[enrollments]]\nsubscription = "{DIGEST}"\nsource = "linear-acme"\ninstallation = 5001\n'
    desk.configure(extra=entry)
    assert desk.enroll().exit_code == 0
    assert [file.name for file in desk.files()] == [LINEAR.name]
    assert desk.enroll(LINEAR, "linear-acme", "--mode", "deny").exit_code == 1
    assert desk.run("revoke", DIGEST).exit_code == 1
    assert [row["state"] for row in desk.rows()] == ["active"]


def test_what_is_refused(desk: Desk) -> None:
    assert desk.enroll(LINEAR, "nobody").exit_code == 2
    assert desk.enroll(LINEAR, "github-acme").exit_code == 1
    broken = desk.folder / "broken.json"
    broken.write_text(LINEAR.read_text().replace("acme/app", "acme/other"))
    assert desk.enroll(broken).exit_code == 1
    assert desk.enroll().exit_code == 0
    result = desk.enroll(LINEAR, "linear-other")
    assert result.exit_code == 1
    assert "one digest has one source" in result.output
    assert len(desk.rows()) == 1


def test_a_changed_document_takes_the_old_ones_place_only_by_enrolling(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    changed = desk.document(grants={"organizations": ["11111111-1111-4111-8111-111111111111"], "teams": ["t2"]})
    shutil.copy(changed, desk.enrolled / LINEAR.name)
    [row] = desk.rows()
    assert (row["digest"], row["state"], row["repository"]) == (DIGEST, "mismatched", "acme/app")
    assert "enroll it" in row["reason"]
    result = desk.enroll(desk.enrolled / LINEAR.name)
    assert result.exit_code == 0, result.output
    assert f"takes the place of {DIGEST}" in result.output
    [row] = desk.rows()
    assert row["state"] == "active"
    assert row["digest"] == json.loads(changed.read_bytes())["digest"]
    newer = desk.folder / LINEAR.name  # from elsewhere, under the same name
    shutil.copy(LINEAR, newer)
    assert desk.enroll(newer).exit_code == 0
    assert [(row["digest"], row["state"]) for row in desk.rows()] == [(DIGEST, "active")]


def test_another_grant_of_a_rolled_over_workflow_takes_the_place_of_the_one_before(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three digests under one file name: the old workflow, the new one, the new one with another grant."""
    monkeypatch.setenv("NOT_SET_HERE", "secret-value")
    (desk.folder / "sub").mkdir()
    name = desk.folder / "sub" / LINEAR.name
    new = "sha256:" + "7" * 64
    made = []
    for teams in (["t1"], ["t2"]):
        grants = {"organizations": ["11111111-1111-4111-8111-111111111111"], "teams": teams}
        shutil.copy(desk.document(workflow_hash=new, grants=grants), name)
        made.append(json.loads(name.read_bytes())["digest"])
        assert desk.enroll().exit_code == 0
        result = desk.enroll(name)
        assert result.exit_code == 0, result.output
    assert f"takes the place of {made[0]}" in result.output
    assert {row["digest"]: row["state"] for row in desk.rows()} == {DIGEST: "active", made[1]: "active"}
    assert {one.subscription.digest for one in load_configuration(desk.config).enrolled} == {DIGEST, made[1]}
    (desk.folder / "third").mkdir()
    other = desk.folder / "third" / LINEAR.name
    shutil.copy(desk.document(workflow_hash=new, repository="acme/other", event_type=_event_type("acme/other")), other)
    result = desk.enroll(other)  # its name is another's, and with the workflow's hash it is another's too
    assert result.exit_code == 0, result.output
    assert len(desk.rows()) == 3
    third = Path(result.stdout.split(": ")[1].split(", ")[0])
    assert f"so this one is {third}" in result.stderr
    shutil.copy(
        desk.document(
            workflow_hash=new,
            repository="acme/other",
            event_type=_event_type("acme/other"),
            grants=DOCUMENT["grants"] | {"teams": ["t9"]},
        ),
        other,
    )
    result = desk.enroll(other)
    assert result.exit_code == 0, result.output
    assert "takes the place of" in result.stderr
    assert {row["digest"] for row in desk.rows()} == {DIGEST, made[1], json.loads(third.read_bytes())["digest"]}


def test_a_reason_is_listed_in_words() -> None:
    row = Row(DIGEST, "linear-acme", "acme/app", "suspended", "workflow-missing", "triage.json")
    told = f"{SETTLED['workflow-missing']} {RESUME['workflow-missing']}"
    assert lines(row).endswith(f"triage.json: workflow-missing: {told}")


def test_an_option_that_is_changed_is_said_to_be(desk: Desk) -> None:
    assert "already" not in desk.enroll().output
    assert desk.enroll(LINEAR, "linear-acme", "--mode", "ask").output.splitlines()[-1].startswith("changed ")
    assert "enrolled already" in desk.enroll().output


def test_before_the_first_start_it_is_said_when_the_default_branch_is_compared(desk: Desk) -> None:
    assert "compared with the default branch when the gateway starts" in desk.enroll().output


def test_an_unknown_installation_is_told_in_words(desk: Desk, github: str) -> None:
    desk.configure(github)
    result = desk.run("enroll", desk.document(repository_id=None), "--source", "linear-acme", "--installation", "7")
    assert result.exit_code == 1
    assert "The App is no longer installed there. (installation-gone, asked for installation 7" in result.output


def test_another_subscription_under_the_same_name_gets_one_of_its_own(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    (desk.folder / "sub").mkdir()
    other = desk.folder / "sub" / LINEAR.name
    shutil.copy(GITHUB, other)
    taken = desk.enrolled / f"{LINEAR.stem}-{json.loads(GITHUB.read_bytes())['workflow_hash'][7:15]}.json"
    for _ in range(2):  # again: the same
        result = desk.enroll(other, "github-acme")
        assert result.exit_code == 0, result.output
        assert str(taken) in result.stdout
        assert {row["digest"]: row["file"] for row in desk.rows()}[
            json.loads(GITHUB.read_bytes())["digest"]
        ] == taken.name
    assert (desk.enrolled / LINEAR.name).read_bytes() == LINEAR.read_bytes()
    assert len(desk.rows()) == 2


def test_the_name_that_was_taken_is_said(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    (desk.folder / "sub").mkdir()
    other = desk.folder / "sub" / LINEAR.name
    shutil.copy(GITHUB, other)
    assert (
        f"{desk.enrolled / LINEAR.name} is another document, so this one is" in desk.enroll(other, "github-acme").stderr
    )


def test_where_every_name_is_anothers_it_is_refused(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    (desk.folder / "sub").mkdir()
    other = desk.folder / "sub" / LINEAR.name
    shutil.copy(GITHUB, other)
    for name in enrolling._names(LINEAR.stem, load_subscription(GITHUB.read_bytes(), "x")):
        shutil.copy(LINEAR, desk.enrolled / f"{name}.json")
    result = desk.enroll(other, "github-acme")
    assert result.exit_code == 1
    assert "another file name" in result.output


def test_an_altered_or_unenrolled_document_is_listed_as_mismatched(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    copy = desk.enrolled / LINEAR.name
    copy.write_text(copy.read_text().replace("33333333", "44444444"))
    shutil.copy(GITHUB, desk.enrolled)
    (desk.enrolled / "junk.json").write_text("{")
    states = {row["file"]: (row["state"], row["reason"]) for row in desk.rows()}
    assert states[LINEAR.name][0] == "mismatched"
    assert "does not match the content" in str(states[LINEAR.name][1])
    assert states["github-issue-opened.json"] == ("mismatched", "is not enrolled")
    assert states["junk.json"][0] == "mismatched"


def test_revoke_removes_entry_and_document(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    result = desk.run("revoke", DIGEST[:11])
    assert result.exit_code == 0, result.output
    assert desk.rows() == []
    assert list(desk.files()) == []
    assert desk.run("revoke", DIGEST).exit_code == 1
    assert desk.enroll().exit_code == 0
    (row,) = json.loads(desk.run("revoke", DIGEST, "--json").stdout)["enrollments"]
    assert (row["digest"], {file["removed"] for file in row["files"]}) == (DIGEST, {True})


@pytest.mark.parametrize(
    "command", [("revoke",), ("reconcile",), ("dead", "discard", "--subscription"), ("dead", "list", "--subscription")]
)
@pytest.mark.parametrize("digest", ["sha256:", "sha256:dfd", "", "sha256:dfdz", "DFDA12", "sha256:" + "a" * 65])
def test_what_is_no_beginning_of_a_digest_is_refused_with_the_least_that_is(
    desk: Desk, command: tuple[str, ...], digest: str
) -> None:
    result = desk.run(*command, digest)
    assert result.exit_code == 2
    assert "at least 4 of its hex digits" in result.stderr


def test_a_beginning_of_several_names_them_and_revokes_none(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_SET_HERE", "planted-secret-value")
    assert desk.enroll().exit_code == 0
    other = DIGEST[:-4] + ("0000" if not DIGEST.endswith("0000") else "1111")
    entry = (desk.enrolled / "linear-issue-created.toml").read_text()
    (desk.enrolled / "other.toml").write_text(entry.replace(DIGEST, other))
    result = desk.run("revoke", DIGEST[:20])
    assert result.exit_code == 1
    assert all(one in result.stderr for one in (DIGEST, other))
    (desk.enrolled / "other.toml").unlink()
    assert desk.run("reconcile", DIGEST[7:20], "--json").exit_code == 3  # GitHub is away: it was found


def test_revoke_leaves_other_entries_of_a_file(desk: Desk) -> None:
    assert desk.enroll().exit_code == 0
    assert desk.enroll(GITHUB, "github-acme").exit_code == 0
    both = (desk.enrolled / "github-issue-opened.toml").read_text() + (
        desk.enrolled / "linear-issue-created.toml"
    ).read_text()
    (desk.enrolled / "linear-issue-created.toml").unlink()
    (desk.enrolled / "github-issue-opened.toml").write_text("# kept\n" + both)
    assert desk.run("revoke", DIGEST).exit_code == 0
    text = (desk.enrolled / "github-issue-opened.toml").read_text()
    assert text.startswith("# kept")
    assert len(tomllib.loads(text)["enrollments"]) == 1
    assert [row["source"] for row in desk.rows()] == ["github-acme"]


def test_the_repository_id_is_read_from_github_or_given(desk: Desk, github: str) -> None:
    bare = desk.document(repository_id=None, repository="Acme/App", event_type=_event_type("Acme/App"))
    away = desk.enroll(bare)
    assert away.exit_code == 3, away.output
    assert not desk.enrolled.exists()
    given = desk.enroll(bare, "linear-acme", "--repository-id", "77")
    assert given.exit_code == 0, given.output
    entry = tomllib.loads((desk.enrolled / "made.toml").read_text())["enrollments"][0]
    assert entry["repository_id"] == 77
    shutil.rmtree(desk.enrolled)
    desk.configure(github)
    read = desk.enroll(bare)
    assert read.exit_code == 0, read.output
    entry = tomllib.loads((desk.enrolled / "made.toml").read_text())["enrollments"][0]
    assert entry["repository_id"] > 0
    unknown = desk.document(repository_id=None, repository="Acme/None", event_type=_event_type("Acme/None"))
    assert desk.enroll(unknown).exit_code == 1
    (desk.folder / "app.pem").unlink()
    other = desk.document(repository_id=None)
    result = desk.enroll(other)
    assert result.exit_code == 2, result.output
    assert "github.private_key" in result.output


def test_another_spelling_is_warned_about(desk: Desk, github: str) -> None:
    desk.configure(github)
    with urllib.request.urlopen(  # the double learns the name as GitHub would spell it
        urllib.request.Request(f"{github}/_double/repository", json.dumps({"repo": "Acme/App", "id": 1296269}).encode())
    ) as answer:
        assert answer.status == 204
    result = desk.enroll(GITHUB, "github-acme")
    assert result.exit_code == 0, result.output
    assert "warning: GitHub spells acme/app as Acme/App; grants are exact" in result.output
    content = {name: value for name, value in json.loads(GITHUB.read_bytes()).items() if name != "digest"}
    content["grants"] |= {"repositories": ["Acme/App", "acme/APP"]}
    file = desk.folder / "made.json"
    file.write_bytes(encode(seal(content)))
    result = desk.enroll(file, "github-acme")
    assert result.exit_code == 0, result.output
    assert "warning: GitHub spells acme/app as Acme/App\n" in result.output
    assert (
        "warning: GitHub spells acme/APP as Acme/App; grants are exact, so what is granted never matches"
        in result.output
    )
    assert "spells Acme/App" not in result.output


def _event_type(repository: str) -> str:
    return event_type_for(repository, json.loads(LINEAR.read_bytes())["workflow"])


def test_compile_check_says_what_changed(desk: Desk) -> None:
    checkout = desk.folder / "checkout"
    shutil.copytree(EXAMPLES / ".github", checkout / ".github")
    consumer = checkout / ".github/workflows/linear-issue-created.md"
    check = ("compile", consumer, "--repo", "acme/app", "--repository-id", "1296269", "--check")
    result = desk.run(*check)
    assert result.exit_code == 1
    assert "not enrolled" in result.output
    assert desk.enroll().exit_code == 0
    result = desk.run(*check)
    assert result.exit_code == 0, result.output
    assert "unchanged" in result.output
    unchanged = [{"connector": "linear", "digest": DIGEST, "enrolled": {DIGEST: []}}]
    assert json.loads(desk.run(*check, "--json").stdout) == {"subscriptions": unchanged}
    consumer.write_text(
        consumer.read_text().replace("[issue-created]", "[issue-closed]").replace("33333333-", "44444444-")
    )
    (checkout / ".github/workflows/linear-issue-created.lock.yml").write_text("name: other\n")
    result = desk.run(*check)
    assert result.exit_code == 1
    assert "/grants/teams: removed" in result.output
    assert "/grants/teams: added" in result.output
    assert "/triggers/issue-created: removed" in result.output
    assert "/workflow_hash: " in result.output
    (row,) = json.loads(desk.run(*check, "--json").stdout)["subscriptions"]
    assert {change["pointer"] for change in row["enrolled"][DIGEST]} >= {"/grants/teams", "/workflow_hash"}
    assert json.loads((desk.enrolled / LINEAR.name).read_bytes())["digest"] == DIGEST


def test_what_is_enrolled_is_what_is_loaded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_SET_HERE", "secret-value")
    assert desk.enroll(LINEAR, "linear-acme", "--mode", "deny").exit_code == 0
    [one] = load_configuration(desk.config).enrolled
    assert (one.subscription.digest, one.source, one.installation, one.mode) == (DIGEST, "linear-acme", 5001, "deny")


def test_compose_has_a_container_that_enrolls_as_the_document_says(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folders laid out as the mounts do: what serves reads what the documented command wrote."""
    root = Path(__file__).parents[2]
    services = YAML(typ="safe").load(root / "deploy/compose.yaml")["services"]
    assert services["gateway"]["volumes"][1] == services["operator"]["volumes"][1] + ":ro"
    assert services["gateway"]["volumes"][0] == services["operator"]["volumes"][0]
    shared = {"build", "networks", "secrets", "read_only", "cap_drop", "security_opt", "depends_on", "tmpfs"}
    assert all(services["gateway"][key] == services["operator"][key] for key in shared)
    text = (root / "docs/operations.md").read_text()
    commands = [line.split()[7:] for line in text.splitlines() if "run --rm operator" in line]
    assert [command[0] for command in commands] == ["enroll", "subscriptions", "doctor"]
    desk.config.write_text(desk.config.read_text().replace('[subscriptions]\npath = "enrolled"\n', ""))
    monkeypatch.chdir(desk.folder)  # the image's WORKDIR
    Path("subscriptions").mkdir()
    shutil.copy(LINEAR, "subscriptions/triage.json")
    done = CliRunner().invoke(main, commands[0])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in Path("subscriptions/enrolled").glob("triage.*")) == [
        "triage.json",
        "triage.toml",
    ]
    assert "active" in CliRunner().invoke(main, commands[1]).stdout
