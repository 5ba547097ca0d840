"""Enrollments whose grant and identity name different tenants, for every shipped example; and where it is said."""

from pathlib import Path

import pytest

from gateway.environment import data_folder
from gateway.profiles import Source, load_profiles
from gateway.reach import unreachable
from gateway.samples import load_samples
from gateway.subscriptions import Enrolled, load_subscription
from tests.cli.desk import DIGEST, EXAMPLES, LINEAR, Desk

PROFILES = load_profiles(data_folder("profiles"))
# what of each profile's identity a shipped connector grants too
SHARED = {
    "azure-devops": {"collection": "collections", "project": "projects"},
    "forge": {"cloud": "clouds"},
    "github": {"organization": "organizations", "repository": "repositories"},
    "gitlab-signing": {"project": "projects"},
    "linear": {"organization": "organizations"},
    "microsoft-graph": {"tenant": "tenants"},
    "servicenow": {"instance": "instances"},
    "slack": {"workspace": "workspaces", "app": "apps"},
}
CASES = [(sample["profile"], name) for sample in load_samples() for name in PROFILES[sample["profile"]].identity]


@pytest.mark.parametrize(("profile", "name"), CASES)
def test_a_foreign_identity_is_told_where_the_grant_names_it_too(profile: str, name: str) -> None:
    sample = next(one for one in load_samples() if one["profile"] == profile)
    document = load_subscription((EXAMPLES / sample["subscription"]).read_bytes(), "")
    one = Enrolled(document, "acme", 7)
    own = {key: tuple(values) for key, values in sample.get("identity", {}).items()}
    assert unreachable(one, Source("acme", PROFILES[profile], own)) is None
    told = unreachable(one, Source("acme", PROFILES[profile], own | {name: ("foreign",)}))
    collection = SHARED.get(profile, {}).get(name)
    if collection is None:
        assert told is None
    else:
        assert told is not None
        assert f"grants.{collection} (" in told
        assert f"sources.acme.identity.{name} (foreign) have nothing in common" in told
        granted = str(document.document["grants"][collection][0])
        assert unreachable(one, Source("acme", PROFILES[profile], own | {name: ("foreign", granted)})) is None


def test_every_shared_name_was_tried() -> None:
    assert {(profile, name) for profile, names in SHARED.items() for name in names} <= set(CASES)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("NOT_SET_HERE", "a-secret-of-some-length")
    return Desk(tmp_path)


def test_enroll_subscriptions_and_check_say_so(desk: Desk) -> None:
    keys = ("grants.organizations (1", "sources.linear-other.identity.organization (9")
    done = desk.enroll(LINEAR, "linear-other")
    assert done.exit_code == 0, done.output
    listed = desk.run("subscriptions")
    [row] = desk.rows()
    checked = desk.run("check")
    assert (row["digest"], row["state"], checked.exit_code) == (DIGEST, "active", 0), checked.output
    for text in (done.stderr, listed.stdout, row["warning"], checked.stderr):
        assert all(key in text for key in keys), text
    assert "fix: correct the source's identity" in checked.stderr


def test_what_can_match_is_not_warned_of(desk: Desk) -> None:
    told = desk.enroll(LINEAR, "linear-acme").stderr
    told += desk.run("subscriptions").output + desk.run("check").output
    assert desk.rows()[0]["warning"] is None
    assert "in common" not in told
