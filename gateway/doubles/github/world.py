"""The world that the double plays: repositories, installations, and the tokens that reach from one to the other."""

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import orjson
from aiohttp import web

from gateway.doubles.github.rules import Refused, bearer
from gateway.structs import Value

# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-an-installation-access-token-for-a-github-app
TOKEN_LIFE_S = 3_600.0
LEVELS = {"read": 1, "write": 2}
DEFAULT_PERMISSIONS = {"contents": "write", "metadata": "read"}
DEFAULT_CONTENTS = {"gateway-dispatch": True}


@dataclass(slots=True)
class Repo:
    """A repository as the double knows it."""

    id: int
    full_name: str
    default_branch: str = "main"
    moved_to: str | None = None
    contents: dict[tuple[str, str | None], bytes] = field(default_factory=dict)
    checkout: Path | None = None

    def file(self, path: str, ref: str | None = None) -> bytes | None:
        """Return a file at a ref: as it was put there, else as the checkout has it now."""
        put = self.contents.get((path, ref or self.default_branch), self.contents.get((path, None)))
        return put if put is not None or self.checkout is None else _workflows(self.checkout).get(path)

    def head(self) -> str:
        """Return an id for the state of the contents, as the default branch's commit is one."""
        state = [(path, ref or "", data) for (path, ref), data in self.contents.items()]
        state += [] if self.checkout is None else [(path, "", data) for path, data in _workflows(self.checkout).items()]
        return hashlib.sha1(repr(sorted(state)).encode(), usedforsecurity=False).hexdigest()


def _workflows(checkout: Path) -> dict[str, bytes]:
    """The files under .github/workflows of a checkout, by their path in it."""
    found = sorted((checkout / ".github/workflows").glob("*"))
    return {file.relative_to(checkout).as_posix(): file.read_bytes() for file in found if file.is_file()}


@dataclass(slots=True)
class Installation:
    """An installation: the repositories that it may reach, and what it may do there."""

    repositories: set[str]
    permissions: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_PERMISSIONS))
    suspended: bool = False


class Token(Value):
    """An installation token: `repositories` holds lower-case full names."""

    installation: int
    repositories: frozenset[str]
    permissions: Mapping[str, str]
    expires_at: float


class World:
    """What there is; `grant` and `check` hold GitHub's rules of who may reach what."""

    def __init__(
        self, installations: Mapping[int, Sequence[str]], token_life_s: float, clock: Callable[[], float]
    ) -> None:
        self._token_life_s, self._clock = token_life_s, clock
        self.tokens: dict[str, Token] = {}
        self.repos: dict[str, Repo] = {}
        self.installations: dict[int, Installation] = {}
        for number, names in installations.items():
            for name in names:
                self.add_repository(name)
            self.installations[number] = Installation({name.lower() for name in names})

    def add_repository(self, name: str, number: int | None = None) -> Repo:
        """Return the repository `name`, made where it is unknown, with a stable id of its own."""
        repo = self.repos.get(name.lower())
        if repo is None:
            repo = Repo(zlib.crc32(name.lower().encode()) if number is None else number, name)
            repo.contents[(".github/workflows/aw.json", None)] = orjson.dumps(DEFAULT_CONTENTS)
            self.repos[name.lower()] = repo
        return repo

    def grant(
        self, number: int, installation: Installation, names: list[str] | None, asked: Mapping[str, Any]
    ) -> tuple[str, Token]:
        """Return a new token and what it may, no more than the installation."""
        repositories = {name for name in installation.repositories if self._here(name) is not None}
        if names is not None:
            wanted = {name.lower() for name in names}
            repositories = {name for name in repositories if name.split("/")[1] in wanted}
            if len(repositories) < len(wanted):
                raise Refused(
                    422,
                    "There is at least one repository that does not exist or is not accessible to the parent installation.",
                )
        permissions = asked.get("permissions", installation.permissions)
        if not isinstance(permissions, dict) or any(
            LEVELS.get(level, 3) > LEVELS.get(installation.permissions.get(name, ""), 0)
            for name, level in permissions.items()
        ):
            raise Refused(422, "The permissions requested are not granted to this installation.")
        # GitHub adds `metadata: read` to every token.
        permissions = {**permissions, "metadata": "read"}
        token = Token(number, frozenset(repositories), permissions, self._clock() + self._token_life_s)
        value = f"ghs_{token_urlsafe(27)}"
        self.tokens[value] = token
        return value, token

    def check(self, request: web.Request, name: str, permission: str, level: str) -> Token:
        """Return the token of the call, which may `level` the `permission` of the repository `name`."""
        token = self.tokens.get(bearer(request))
        if token is None or token.expires_at <= self._clock():
            raise Refused(401, "Bad credentials")
        repo = self.repos.get(name.lower())
        if repo is not None and repo.moved_to is not None:
            moved = f"{request.url.origin()}/repositories/{repo.id}"
            raise Refused(301, "Moved Permanently", {"Location": moved}, url=moved)
        if repo is None or name.lower() not in token.repositories:
            # GitHub does not tell a repository that does not exist from one that the token may not see.
            raise Refused(404, "Not Found")
        if LEVELS.get(token.permissions.get(permission, ""), 0) < LEVELS[level]:
            raise Refused(403, "Resource not accessible by integration")
        return token

    def _here(self, name: str) -> Repo | None:
        repo = self.repos.get(name)
        return None if repo is None or repo.moved_to is not None else repo

    def named_in(self, installation: Installation | None, names: list[str] | None) -> str:
        """Return the full name of the one repository that a token is asked for, "" where there is none."""
        if installation is None or names is None or len(names) != 1:
            return ""
        found = (name for name in installation.repositories if name.split("/")[1] == names[0].lower())
        return next(found, "")
