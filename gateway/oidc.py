"""A GitHub Actions OIDC token: what it must be, and what its claims must say. Pure; the keys and the time are arguments.

https://docs.github.com/en/actions/reference/security/oidc lists the claims. The token is decoded by `schemes.jwt`, which
takes one spelling of everything; nothing of a token is believed before its signature holds.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.errors import Rejection
from gateway.schemes import jwt
from gateway.structs import Opaque, Value

MAX_LIFETIME_S: Final = 900.0
LEEWAY_S: Final = 30.0
MAX_JTI_CHARS: Final = 200
EVENT: Final = "repository_dispatch"

_ID: Final = re.compile(r"[1-9][0-9]{0,19}")
_SHA: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")


class Proven(Opaque):
    """A token that GitHub signed, in its time: which run it speaks for is still to be judged from `claims`."""

    claims: Mapping[str, Any]
    jti: str
    run_id: str
    workflow_sha: str


class Expected(Value):
    """What an enrollment says that its run's token must say. `branch` is the repository's default branch."""

    audience: str
    repository: str
    repository_id: int
    workflow: str
    sender_id: int


def unverified_kid(token: jwt.Token) -> str | None:
    """Return the key id that the token claims, before any proof, so that a JWKS may be refreshed; None for none."""
    kid = token.header.get("kid")
    return kid if isinstance(kid, str) and len(kid) <= MAX_JTI_CHARS and _VISIBLE.fullmatch(kid) else None


def prove(token: jwt.Token, keys: Mapping[str, RSAPublicKey], issuer: str, now: float) -> Proven:
    """Prove a parsed token; raises Rejection (401) `token`, `issuer`, `freshness`, `lifetime` or `claim-NAME`.

    1. Size and shape: bounded and decoded without a second reading (`jwt.parse`, before this).
    2. RS256 alone, no `crit`; a linked or embedded key (`jku`, `x5u`, `jwk`, `x5c`) is never looked at.
    3. A known `kid`, and the signature with that one key.
    4. The issuer.
    5. `exp`, `nbf` and `iat` are numbers that hold with the leeway; the lifetime is bounded.
    6. A single-use id, a run id and the commit of the workflow file.
    """
    kid = jwt.known_kid(token.header, keys)
    jwt.check_signature(token, keys[kid])
    claims = token.claims
    if claims.get("iss") != issuer:
        raise Rejection("issuer", 401)
    issued, begins, expires = (jwt.moment(claims.get(name)) for name in ("iat", "nbf", "exp"))
    if now >= expires + LEEWAY_S or now < begins - LEEWAY_S or now < issued - LEEWAY_S:
        raise Rejection("freshness", 401)
    if not 0 < expires - issued <= MAX_LIFETIME_S or begins >= expires:
        raise Rejection("lifetime", 401)
    jti, run, sha = claims.get("jti"), number(claims.get("run_id")), claims.get("workflow_sha")
    if not isinstance(jti, str) or len(jti) > MAX_JTI_CHARS or not _VISIBLE.fullmatch(jti):
        raise Rejection("claim-jti", 401)
    if run is None:
        raise Rejection("claim-run-id", 401)
    if not isinstance(sha, str) or not _SHA.fullmatch(sha):
        raise Rejection("claim-workflow-sha", 401)
    return Proven(claims, jti, run, sha)


def check_run(proven: Proven, expected: Expected) -> None:
    """Judge which run the token speaks for; raises Rejection with the slug of the first claim that is not as enrolled.

    7. Exactly one audience, bound to the enrolled workflow hash (401; the rest is 403).
    8. The event is `repository_dispatch`.
    9. The repository by name and by its lasting id: neither a fork nor a later owner of the name has both.
    10. The sender is the App's bot user; a job's own GITHUB_TOKEN dispatches as another one.
    11. No deployment environment: the enrolled job has none, and one changes what the token's `sub` stands for.
    """
    claims = proven.claims
    if claims.get("aud") != expected.audience:  # a list is not text: two audiences never pass, nor does a list of one
        raise Rejection("audience", 401)
    if claims.get("event_name") != EVENT:
        raise Rejection("event", 403)
    if claims.get("repository") != expected.repository or number(claims.get("repository_id")) != str(
        expected.repository_id
    ):
        raise Rejection("repository", 403)
    if number(claims.get("actor_id")) != str(expected.sender_id):
        raise Rejection("sender", 403)
    if claims.get("environment") not in (None, ""):
        raise Rejection("environment", 403)


def check_workflow(proven: Proven, expected: Expected, branch: str) -> None:
    """Judge which workflow file the token speaks for, knowing the default branch; raises Rejection `ref` or `workflow`.

    12. The ref is the default branch, as for every `repository_dispatch`.
    13. `workflow_ref` is the enrolled file on that branch.
    14. A reusable workflow is another file, whose bytes nobody enrolled: where the job says which file it stands in, that is
        the enrolled one at the same commit.
    """
    claims, ref = proven.claims, f"refs/heads/{branch}"
    if claims.get("ref") != ref or claims.get("ref_type", "branch") != "branch":
        raise Rejection("ref", 403)
    workflow = f"{expected.repository}/{expected.workflow}@{ref}"
    if claims.get("workflow_ref") != workflow:
        raise Rejection("workflow", 403)
    if claims.get("job_workflow_ref", workflow) != workflow:
        raise Rejection("workflow", 403)
    if claims.get("job_workflow_sha", proven.workflow_sha) != proven.workflow_sha:
        raise Rejection("workflow", 403)


def claimed_branch(proven: Proven) -> str | None:
    """Return the branch that the token names, None for a tag or a pull request."""
    ref = proven.claims.get("ref")
    return ref.removeprefix("refs/heads/") if isinstance(ref, str) and ref.startswith("refs/heads/") else None


def number(value: Any) -> str | None:
    """Return an id as decimal text. GitHub writes ids as text; a number says the same."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return value if isinstance(value, str) and _ID.fullmatch(value) else None
