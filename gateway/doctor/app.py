"""The App at GitHub: its key, our clock, its installations and the repositories enrolled."""

import time

import aiohttp

from gateway.answers import GitHubAway, GitHubRefusal
from gateway.configuration import Configuration
from gateway.doctor.finding import Finding, Findings, of_problem, skew
from gateway.environment import resolve
from gateway.errors import ConfigError
from gateway.github import GitHubApp
from gateway.subscriptions import Enrolled

# https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event
NEEDED = {"contents": "write", "metadata": "read"}
LEVELS = {"read": 1, "write": 2, "admin": 3}


async def github_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """The App's key, our clock, and for each enrollment the installation, its permissions and its repository."""
    settings = configuration.settings.github
    try:
        app = GitHubApp(settings.api_url, settings.app_id, resolve(settings.private_key), session)
    except ConfigError as error:
        for problem in error.at(str(configuration.file)).problems:
            yield of_problem("GitHub App", problem)
        return
    try:
        asked = time.time()
        about = await app.about()
    except GitHubAway as away:
        if away.reason == "app-unauthorized":
            fix = "check github.app_id and github.private_key, and this machine's clock"
            yield Finding("GitHub App", "fail", "GitHub does not accept the App's key", fix)
        else:
            yield Finding("GitHub App", "fail", f"{settings.api_url}: {away.reason}", "open outgoing https to it")
        return
    except GitHubRefusal as refusal:
        yield Finding("GitHub App", "fail", f"{settings.api_url}: {refusal.reason}", "check github.api_url")
        return
    if about.id != settings.app_id:
        yield Finding("GitHub App", "fail", f"the key belongs to App {about.id}", "correct github.app_id")
    else:
        yield Finding("GitHub App", "ok", f"{about.slug}, id {about.id}")
    yield await _bot(app, settings.sender_id)
    if about.date is not None:
        yield skew("GitHub", about.date + 0.5, (asked + time.time()) / 2)
    for number in sorted({one.installation for one in configuration.enrolled}):
        yield await _installation(app, number)
    seen = set()
    for one in configuration.enrolled:
        key = (one.installation, one.subscription.repository.lower())
        if key not in seen:
            seen.add(key)
            yield await _repository(app, one)


async def _bot(app: GitHubApp, configured: int | None) -> Finding:
    """Who a run must have as its sender: the number that the admission action wants."""
    try:
        found = await app.app_bot_id()
    except (GitHubRefusal, GitHubAway) as error:
        fix = "set github.sender_id, else the gateway uses the id it knew last"
        return Finding("App's bot user", "fail", f"its id is not to be had: {error.reason}", fix)
    if configured not in (None, found):
        return Finding(
            "App's bot user", "fail", f"id {found}, github.sender_id is {configured}", "correct github.sender_id"
        )
    return Finding("App's bot user", "ok", f"id {found}: the admission action's sender-id")


async def _installation(app: GitHubApp, number: int) -> Finding:
    try:
        found = await app.installation(number)
    except GitHubRefusal as refusal:
        fix = "install the App, and enroll with the number at the end of the installation's settings URL"
        return Finding("installation", "fail", f"{number}: {refusal.reason}", fix)
    except GitHubAway as away:
        return Finding("installation", "fail", f"{number}: {away.reason}", "try again")
    if found.suspended:
        return Finding("installation", "fail", f"{number} ({found.account}) is suspended", "unsuspend it on GitHub")
    lacking = [
        f"{name}: {level}"
        for name, level in NEEDED.items()
        if LEVELS.get(found.permissions.get(name, ""), 0) < LEVELS[level]
    ]
    if lacking:
        fix = "give the App these repository permissions, and accept them in the installation"
        return Finding("installation", "fail", f"{number} ({found.account}) lacks {', '.join(lacking)}", fix)
    return Finding("installation", "ok", f"{number} ({found.account})")


async def _repository(app: GitHubApp, one: Enrolled) -> Finding:
    name = one.subscription.repository
    try:
        found = await app.repository(one.installation, name)
        await app.token(one.installation, name)
    except GitHubRefusal as refusal:
        fix = f"add {name} to installation {one.installation}, or enroll it with the installation that has it"
        return Finding("repository", "fail", f"{name}: {refusal.reason}", fix)
    except GitHubAway as away:
        return Finding("repository", "fail", f"{name}: {away.reason}", "try again")
    expected = one.repository_id or one.subscription.repository_id
    if expected is not None and expected != found.id:
        fix = "another repository has this name now: compile and enroll again"
        return Finding("repository", "fail", f"{name} has id {found.id}, enrolled was {expected}", fix)
    return Finding("repository", "ok", f"{found.full_name}, default branch {found.default_branch}")
