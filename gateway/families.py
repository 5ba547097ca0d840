"""The GitHub families that a consumer may select without an import, lowered to the same triggers as any declaration.

Events, activities and members: https://docs.github.com/en/webhooks/webhook-events-and-payloads. A trigger is named
`<family>-<activity>` with GitHub's `_` written `-`; its native event is `<event>.<activity>`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway import canonical
from gateway.structs import Value

CONNECTOR: Final = "github"
PROFILE: Final = "github"
SLASH_COMMAND: Final = "slash-command"
COMMAND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")

_NO_PULL_REQUEST: Final = {"any": [{"not": {"present": "/issue/pull_request"}}, {"null": "/issue/pull_request"}]}
_PULL_REQUEST: Final = {"present": "/issue/pull_request"}
_BY_USER: Final = {"equals": ["/comment/user/type", "User"]}


class Family(Value):
    """One family: GitHub's event, its activities, and the resource that it is about."""

    event: str
    activities: tuple[str, ...]
    names: Mapping[str, str]
    path: str | None  # after the repository; None where only an enrollment's url_template can say it
    sent: str | None
    shape: str | None = None
    when: Mapping[str, Any] | None = None


def _activities(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ISSUE_COMMENT: Final = {"number": "/issue/number", "comment": "/comment/id"}
_REVIEW: Final = {"number": "/pull_request/number"}
_ALERT: Final = {"number": "/alert/number"}

FAMILIES: Final[Mapping[str, Family]] = {
    "issue": Family(
        "issues",
        _activities(
            "assigned closed deleted demilestoned edited labeled locked milestoned opened pinned reopened transferred typed"
            " unassigned unlabeled unlocked unpinned untyped",
        ),
        {"number": "/issue/number"},
        "/issues/{number}",
        "/issue/html_url",
        when=_NO_PULL_REQUEST,
    ),
    "pull-request": Family(
        "pull_request",
        _activities(
            "assigned auto_merge_disabled auto_merge_enabled closed converted_to_draft demilestoned dequeued edited enqueued"
            " labeled locked milestoned opened ready_for_review reopened review_request_removed review_requested"
            " synchronize unassigned unlabeled unlocked",
        ),
        {"number": "/pull_request/number"},
        "/pull/{number}",
        "/pull_request/html_url",
    ),
    "discussion": Family(
        "discussion",
        _activities(
            "answered category_changed closed created deleted edited labeled locked pinned reopened transferred unanswered"
            " unlabeled unlocked unpinned",
        ),
        {"number": "/discussion/number"},
        "/discussions/{number}",
        "/discussion/html_url",
    ),
    "issue-comment": Family(
        "issue_comment",
        _activities("created deleted edited pinned unpinned"),
        _ISSUE_COMMENT,
        "/issues/{number}#issuecomment-{comment}",
        "/comment/html_url",
        when=_NO_PULL_REQUEST,
    ),
    "pull-request-comment": Family(
        "issue_comment",
        _activities("created deleted edited pinned unpinned"),
        _ISSUE_COMMENT,
        "/pull/{number}#issuecomment-{comment}",
        "/comment/html_url",
        "/issues/{number}#issuecomment-{comment}",
        when=_PULL_REQUEST,
    ),
    "discussion-comment": Family(
        "discussion_comment",
        _activities("created deleted edited"),
        {"number": "/discussion/number", "comment": "/comment/id"},
        "/discussions/{number}#discussioncomment-{comment}",
        "/comment/html_url",
    ),
    "commit-comment": Family(
        "commit_comment",
        _activities("created"),
        {"commit": "/comment/commit_id", "comment": "/comment/id"},
        "/commit/{commit}#commitcomment-{comment}",
        "/comment/html_url",
    ),
    "pull-request-review": Family(
        "pull_request_review",
        _activities("dismissed edited submitted"),
        {**_REVIEW, "review": "/review/id"},
        "/pull/{number}#pullrequestreview-{review}",
        "/review/html_url",
    ),
    "pull-request-review-comment": Family(
        "pull_request_review_comment",
        _activities("created deleted edited"),
        {**_REVIEW, "comment": "/comment/id"},
        "/pull/{number}#discussion_r{comment}",
        "/comment/html_url",
    ),
    "pull-request-review-thread": Family(
        "pull_request_review_thread",
        _activities("resolved unresolved"),
        {**_REVIEW, "comment": "/thread/comments/0/id"},
        "/pull/{number}#discussion_r{comment}",
        "/thread/comments/0/html_url",
    ),
    "projects-items": Family(
        "projects_v2_item",
        _activities("archived converted created deleted edited reordered restored"),
        {"item": "/projects_v2_item/id"},
        None,
        None,
    ),
    "dependabot-alert": Family(
        "dependabot_alert",
        _activities("assignees_changed auto_dismissed auto_reopened created dismissed fixed reintroduced reopened"),
        _ALERT,
        "/security/dependabot/{number}",
        "/alert/html_url",
    ),
    "code-scanning-alert": Family(
        "code_scanning_alert",
        _activities(
            "appeared_in_branch closed_by_user created fixed reopened reopened_by_user updated_assignment",
        ),
        _ALERT,
        "/security/code-scanning/{number}",
        "/alert/html_url",
    ),
    "secret-scanning-alert": Family(
        "secret_scanning_alert",
        _activities("assigned created publicly_leaked reopened resolved unassigned validated"),
        _ALERT,
        "/security/secret-scanning/{number}",
        "/alert/html_url",
    ),
}


def trigger_name(family: str, activity: str) -> str:
    """Name the trigger of an activity as GitHub spells it."""
    return f"{family}-{activity.replace('_', '-')}"


def scope(family: str, selectors: Mapping[str, Any]) -> dict[str, str]:
    """Map the scope dimensions that a family has under the selectors that are set: resource name to collection.

    `repos` scopes every family but `projects-items`, `projects` that one alone, `orgs` all.
    """
    own = ("projects", "project", "projects") if family == "projects-items" else ("repos", "repository", "repositories")
    pairs = (own, ("orgs", "organization", "organizations"))
    return {resource: collection for selector, resource, collection in pairs if selector in selectors}


def lower(family: str, activity: str, selectors: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Lower one activity of a family under a consumer's shared selectors and the reviewed GitHub origin."""
    row = FAMILIES[family]
    trigger = _base(family, selectors, origin, [f"{row.event}.{activity}"])
    trigger["normalize"] |= row.names
    # A commit is named by its hash, a commit comment's only text; everything else is GitHub's integer id or number.
    trigger["types"] |= {name: "string" if name == "commit" else "integer" for name in row.names}
    trigger["match"] = {"/action": activity}
    if row.when is not None:
        trigger["when"] = row.when
    if row.path is not None:
        trigger["canonicalUrl"] = f"{origin}/{{+repository}}{row.path}"
    if row.sent is not None:
        trigger["url"] = [{"from": row.sent}]
    if row.shape is not None:
        trigger["urlShapes"] = [f"{origin}/{{+repository}}{row.shape}"]
    return trigger


def lower_slash_command(selectors: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Lower `slash-command`: a created issue, pull-request or discussion comment by a person that begins with `/name`."""
    trigger = _base(SLASH_COMMAND, selectors, origin, ["issue_comment.created", "discussion_comment.created"])
    trigger["match"] = {"/action": "created"}
    trigger["when"] = _BY_USER
    trigger["normalize"] |= {"comment": "/comment/id", "command": "first-token:/comment/body"}
    trigger["types"] |= {"comment": "integer", "number": "integer", "command": "string"}
    trigger["filters"] = {"commands": "command"}
    trigger["url"] = [{"from": "/comment/html_url"}]
    families = ("issue-comment", "pull-request-comment", "discussion-comment")
    trigger["variants"] = [_command_variant(FAMILIES[family], origin) for family in families]
    return trigger


def _command_variant(row: Family, origin: str) -> dict[str, Any]:
    variant: dict[str, Any] = {
        "when": {"all": [{"equals": ["@event", f"{row.event}.created"]}, *([row.when] if row.when else [])]},
        "normalize": {"number": row.names["number"]},
        "canonicalUrl": f"{origin}/{{+repository}}{row.path}",
    }
    if row.shape is not None:
        variant["urlShapes"] = [f"{origin}/{{+repository}}{row.shape}"]
    return variant


def _base(family: str, selectors: Mapping[str, Any], origin: str, events: list[str]) -> dict[str, Any]:
    """Lower what all families share: profile, scope dimensions and their evidence."""
    projects = family == "projects-items"
    normalize = {"organization": "/organization/login" if projects else "/repository/owner/login"}
    if projects:
        normalize["project"] = "/projects_v2_item/project_node_id"
    else:
        normalize["repository"] = "/repository/full_name"
    resources = scope(family, selectors)
    used = {*resources, *(() if projects else ("repository",))}
    return {
        "verificationProfile": [PROFILE],
        "nativeEvents": events,
        "normalize": {name: pointer for name, pointer in normalize.items() if name in used},
        "types": dict.fromkeys(sorted(used), "string"),
        "resources": resources,
        "resourceOrigins": [origin],
    }


def digest() -> str:
    """Digest what the families mean, as a declaration's digest does for a connector."""
    selectors = {"repos": (), "orgs": (), "projects": ()}
    origin = "https://github.com"
    lowered = {
        trigger_name(family, activity): lower(family, activity, selectors, origin)
        for family, row in FAMILIES.items()
        for activity in row.activities
    }
    return canonical.digest({**lowered, SLASH_COMMAND: lower_slash_command(selectors, origin)})
