import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gateway import pointers
from gateway.errors import ConfigError
from gateway.profiles import (
    ClientStateProof,
    JwtProof,
    MacProof,
    Profile,
    SharedSecretProof,
    layout_piece,
    load_profile,
    load_profiles,
)

FOLDER = Path(__file__).parent.parent / "profiles"
PROFILES = load_profiles(FOLDER)
SHIPPED = {
    "azure-devops",
    "bitbucket",
    "discord",
    "forge",
    "github",
    "gitlab-signing",
    "gitlab-token",
    "jira",
    "linear",
    "microsoft-graph",
    "pagerduty",
    "sentry",
    "servicenow",
    "shopify",
    "slack",
    "standard-webhooks",
    "stripe",
}
MINIMAL: dict[str, Any] = {
    "name": "example",
    "title": "Example",
    "docs": ["https://example.com/"],
    "proof": {"scheme": "mac", "header": "x-signature", "encoding": "hex"},
    "event": {"parts": ["/type"]},
    "delivery_id": {"parts": [["/id"]], "signed": True, "ttl_s": 60},
}


def test_what_is_shipped() -> None:
    assert set(PROFILES) == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_profile_cites_public_sources(name: str) -> None:
    profile = PROFILES[name]
    assert profile.docs
    assert all(url.startswith("https://") for url in profile.docs)
    assert profile.secret_help
    assert profile.retries
    text = (FOLDER / f"{name}.yaml").read_text()
    proof = text[text.index("\nproof:") : text.index("\nevent:")]
    assert re.search(r"# .*https://", proof), "the proof's facts have no source beside them"


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_header_that_names_the_event_and_is_unsigned_has_shapes_or_a_body_that_decides(name: str) -> None:
    event = PROFILES[name].event
    if any(part.startswith("header:") for part in event.parts):
        assert event.header_required
        assert event.shapes
        assert not event.open
    if event.header is not None and not event.header_required:
        assert event.header_equals is not None


# Longest time after which the provider may send the same delivery again, by its own word or by hand.
AGAIN_S = {
    "github": 3 * 86_400,
    "gitlab-token": 7 * 86_400,
    "gitlab-signing": 7 * 86_400,
    "linear": 7 * 3600,
    "jira": 2 * 3600,
    "azure-devops": 3 * 86_400,
    "slack": 3600,
    "microsoft-graph": 4 * 3600,
    "forge": 3600,
    "pagerduty": 48 * 3600,
    "shopify": 4 * 3600,
    "stripe": 3 * 86_400,
    "bitbucket": 3600,
    "discord": 600,
}


@pytest.mark.parametrize("name", sorted(AGAIN_S))
def test_dedupe_outlives_the_providers_retries(name: str) -> None:
    assert PROFILES[name].delivery_id.ttl_s > AGAIN_S[name]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_dedupe_outlives_the_window(name: str) -> None:
    profile = PROFILES[name]
    assert profile.freshness is None or profile.delivery_id.ttl_s > 2 * profile.freshness.window_s


def test_windows() -> None:
    windows = {name: p.freshness.window_s for name, p in PROFILES.items() if p.freshness is not None}
    assert windows == {
        "linear": 60,
        "slack": 300,
        "gitlab-signing": 300,
        "standard-webhooks": 300,
        "servicenow": 300,
        "discord": 300,
        "stripe": 300,
    }
    forge = PROFILES["forge"].proof
    assert isinstance(forge, JwtProof)
    assert forge.leeway_s == 10


def test_identities() -> None:
    names = {name: (dict(p.identity), set(p.identity_optional)) for name, p in PROFILES.items() if p.identity}
    assert names == {
        "linear": ({"organization": "/organizationId"}, set()),
        "slack": ({"workspace": "/team_id", "app": "/api_app_id"}, set()),
        "microsoft-graph": ({"tenant": "/tenantId", "subscription": "/subscriptionId"}, {"subscription"}),
        "forge": (
            {"app": "@app", "installation": "@installation", "cloud": "@cloud", "environment": "@environment"},
            set(),
        ),
        "azure-devops": (
            {
                "collection": "/resourceContainers/collection/id",
                "project": "/resourceContainers/project/id",
                "subscription": "/subscriptionId",
            },
            {"subscription"},
        ),
        "sentry": ({"installation": "/installation/uuid"}, set()),
        "servicenow": ({"instance": "/data/instance"}, set()),
        "gitlab-token": ({"project": "/project/id"}, {"project"}),
        "gitlab-signing": ({"project": "/project/id"}, {"project"}),
        "github": (
            {
                "installation": "/installation/id",
                "organization": "/organization/login",
                "repository": "/repository/full_name",
            },
            {"installation", "organization", "repository"},
        ),
        "discord": ({"application": "/application_id"}, set()),
        "bitbucket": (
            {"repository": "/repository/full_name", "workspace": "/repository/workspace/uuid"},
            {"repository", "workspace"},
        ),
        "stripe": ({"account": "/account"}, {"account"}),
    }


def test_an_id_outside_the_proof_has_the_body_as_a_second_key() -> None:
    unsigned = {name for name, p in PROFILES.items() if not p.delivery_id.signed}
    assert unsigned == {"github", "linear", "jira", "gitlab-token", "sentry", "shopify", "bitbucket"}
    for name, profile in PROFILES.items():
        headers = {part for parts in profile.delivery_id.parts for part in parts if part.startswith("header:")}
        layout = profile.proof.layout if isinstance(profile.proof, MacProof) else ()
        if headers and not headers <= {piece.strip("{}") for piece in layout}:
            assert name in unsigned


def test_statuses() -> None:
    assert {name: dict(p.statuses) for name, p in PROFILES.items() if p.statuses} == {
        "gitlab-token": {"400": 200, "403": 200},
        "gitlab-signing": {"400": 200, "403": 200},
        "azure-devops": {"400": 200, "403": 200, "429": 503},
        "microsoft-graph": {"success": 202},
    }


GITHUB_BODIES: dict[str, Any] = {
    "issues": {"action": "opened", "issue": {}},
    "issue_comment": {"action": "created", "issue": {}, "comment": {}},
    "pull_request": {"action": "opened", "number": 1, "pull_request": {}},
    "pull_request_review": {"action": "submitted", "pull_request": {}, "review": {}},
    "pull_request_review_comment": {"action": "created", "pull_request": {}, "comment": {}},
    "pull_request_review_thread": {"action": "resolved", "pull_request": {}, "thread": {}},
    "discussion": {"action": "created", "discussion": {}},
    "discussion_comment": {"action": "created", "discussion": {}, "comment": {}},
    "commit_comment": {"action": "created", "comment": {"commit_id": "a"}},
    "projects_v2_item": {"action": "edited", "projects_v2_item": {}},
    "dependabot_alert": {"action": "created", "alert": {"security_advisory": {}}},
    "code_scanning_alert": {"action": "created", "alert": {"rule": {}}},
    "secret_scanning_alert": {"action": "created", "alert": {"secret_type": "x"}},
    "push": {"ref": "refs/heads/main", "before": "a", "after": "b", "pusher": {}},
    "ping": {"zen": "x", "hook_id": 1},
    "release": {"action": "published", "release": {}},
}


def test_github_bodies_fit_their_own_event_alone() -> None:
    """A captured body cannot be relabelled: of all events that say what their body looks like, it fits its own."""
    shapes = PROFILES["github"].event.shapes
    for event, members in GITHUB_BODIES.items():
        body = {**members, "repository": {"full_name": "acme/app"}, "sender": {"id": 1}}
        fits = {
            name
            for name in GITHUB_BODIES
            if all(resolves(body, pointer) for pointer in shapes[name].required)
            and not any(resolves(body, pointer) for pointer in shapes[name].forbidden)
        }
        assert fits == {event}


def resolves(body: Any, pointer: str) -> bool:
    return pointers.resolve(body, pointers.parse(pointer)) is not pointers.MISSING


def test_unauthenticated_handshakes_are_graphs_alone() -> None:
    shakes = {(name, s.unauthenticated) for name, p in PROFILES.items() for s in p.handshakes}
    assert shakes == {("slack", False), ("discord", False), ("microsoft-graph", True)}


def test_only_known_schemes_without_a_signature_cover_no_body() -> None:
    unsigned = {n for n, p in PROFILES.items() if isinstance(p.proof, SharedSecretProof | ClientStateProof | JwtProof)}
    assert unsigned == {"gitlab-token", "azure-devops", "microsoft-graph", "forge"}


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("{body}", ("body", "")),
        ("{header:a}", ("header", "a")),
        ("{signature:t}", ("signature", "t")),
        ("v0:", ("literal", "v0:")),
    ],
)
def test_layout_pieces(text: str, piece: tuple[str, str]) -> None:
    assert layout_piece(text) == piece


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unknown": 1}, "unknown"),
        ({"name": "Example"}, "name"),
        ({"proof": {"scheme": "other"}}, "scheme"),
        ({"proof": {**MINIMAL["proof"], "layout": ["{url}"]}}, "{url}"),
        ({"proof": {**MINIMAL["proof"], "layout": ["{header:}"]}}, "{header:}"),
        ({"proof": {**MINIMAL["proof"], "layout": ["static"]}}, "must cover {body}"),
        ({"proof": {**MINIMAL["proof"], "layout": []}}, "must cover {body}"),
        ({"event": {"parts": ["type"]}}, "starts with /"),
        ({"event": {"parts": ["/a~2"]}}, "~"),
        ({"event": {"parts": ["header:X-Event"]}}, "lower case"),
        ({"event": {"parts": ["header:"]}}, "lower case"),
        ({"event": {"parts": ["/a"], "alternatives": [["b"]]}}, "starts with /"),
        ({"event": {"parts": ["/a"], "shapes": {"x": {"required": ["b"]}}}}, "starts with /"),
        ({"identity": {"tenant": "tenant"}}, "starts with /"),
        ({"identity_optional": ["tenant"]}, "is no identity"),
        ({"facts": {"a": "@"}}, "starts with /"),
        ({"tests": [{"present": ["x"]}]}, "starts with /"),
        ({"lifecycle": {"present": ["x"]}}, "starts with /"),
        ({"delivery_id": {**MINIMAL["delivery_id"], "parts": [["digest:x without y"]]}}, "starts with /"),
        ({"freshness": {"at": "header:x-time", "unit": "s", "window_s": 300}}, "not covered"),
        ({"freshness": {"at": "/time", "unit": "s", "window_s": 0}}, "window_s"),
        (
            {
                "proof": {"scheme": "shared-secret", "header": "x-token"},
                "freshness": {"at": "header:x-time", "unit": "s", "window_s": 300},
            },
            "not covered",
        ),
        ({"proof": {"scheme": "client-state", "items": "/v", "at": "/c", "subscription": "/s"}}, "items"),
        (
            {
                "proof": {"scheme": "jwt", "issuer": "i", "jwks_url": "u", "audience": "app", "max_lifetime_s": 1},
                "identity": {"cloud": "@cloud"},
            },
            "proof.audience",
        ),
        (
            {
                "proof": {"scheme": "jwt", "issuer": "i", "jwks_url": "u", "audience": "app", "max_lifetime_s": 1},
                "identity": {"app": "@app"},
            },
            "no such fact",
        ),
    ],
)
def test_refuses(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "example.yaml"
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump({**MINIMAL, **change}, file)
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_parts_that_are_well_formed() -> None:
    parts = ["@fact", "body-digest", "digest: without a", "digest:/b without a", "header:x-a?", "/c?", ""]
    profile = Profile.model_validate({**MINIMAL, "delivery_id": {**MINIMAL["delivery_id"], "parts": [parts]}})
    assert profile.delivery_id.parts == (tuple(parts),)


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"a: [", b"name: a\nname: b\n", b"!!python/object:os.system x", b"a: 2001-99-99", b""],
)
def test_unreadable_files_are_configuration_errors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "example.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        load_profile(tmp_path / "example.yaml")


def test_all_files_problems_come_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("name: 1\n")
    with (tmp_path / "c.yaml").open("w") as file:
        YAML(typ="safe", pure=True).dump(MINIMAL, file)
    with pytest.raises(ConfigError) as caught:
        load_profiles(tmp_path)
    assert {Path(problem.file).name for problem in caught.value.problems} == {"a.yaml", "b.yaml", "c.yaml"}
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile(tmp_path / "absent.yaml")
