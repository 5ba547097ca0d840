"""A double of GitHub's runner: it runs the action `deploy/actions/admit/` as the first step of the run that a dispatch started.

The event comes from the GitHub double, the run's identity from the OIDC double, and the step is the action's own file in its
own process. Its log goes to standard error, a line of JSON `{"exit", "run_id", "outputs"}` to standard output; the exit code
is the step's, or 3 where there is nothing to run.

- the same command again is another run of the same dispatch: it ends green, with `admitted` false
- `--run-id ID` of a line before is a re-run of that run: it is admitted again
- `--sender ID` is a run that somebody else started
- `--claim NAME=VALUE` is a run with another claim in its token (`--claim NAME=` has none), such as `repository_id=5`,
  `repository=other/app`, `workflow_ref=...`, `ref=refs/heads/x`, `event_name=push`, `environment=prod` or `aud=other`

What a job sees: https://docs.github.com/en/actions/reference/workflows-and-actions/variables
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from ruamel.yaml import YAML

from gateway import files
from gateway.doubles.oidc import CLAIMS, run_claims
from gateway.structs import Opaque, Value
from gateway.subscriptions import MAX_BYTES, WORKFLOW

ACTION = Path(__file__).parents[2] / "deploy" / "actions" / "admit"
EVENT = "repository_dispatch"


class Step(Value):
    """A step that ended: its exit code, outputs and log, and the file that it wrote the outputs to."""

    code: int
    outputs: dict[str, str]
    log: str
    written: str


class Run(Opaque):
    """The run of a workflow file (`workflow` is its path): its id, and where it may ask for identity tokens."""

    repository: str
    repository_id: int
    workflow: str
    run_id: str
    token_url: str
    token: str
    branch: str = "main"

    def environment(self) -> dict[str, str]:
        """What a step of it finds in its environment, besides its files and inputs."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "GITHUB_EVENT_NAME": EVENT,
            "GITHUB_REPOSITORY": self.repository,
            "GITHUB_REPOSITORY_ID": str(self.repository_id),
            "GITHUB_WORKFLOW_REF": f"{self.repository}/{self.workflow}@refs/heads/{self.branch}",
            "GITHUB_RUN_ID": self.run_id,
            "ACTIONS_ID_TOKEN_REQUEST_URL": self.token_url,
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.token,
        }


def manifest(action: Path = ACTION) -> Any:
    """Return an action's `action.yml`."""
    return YAML(typ="safe").load(action / "action.yml")


async def step(
    run: Run,
    event: str,
    inputs: Mapping[str, str],
    *,
    workspace: Path,
    action: Path = ACTION,
    changes: Mapping[str, str | None] | None = None,
) -> Step:
    """Run the action in a process of its own, with `event` as the text of its event file.

    Inputs that are not given have the defaults of `action.yml`. `changes` are made to the environment last; None removes.
    """
    declared = manifest(action)
    given = {name: str(spec.get("default", "")) for name, spec in declared["inputs"].items()} | dict(inputs)
    with tempfile.TemporaryDirectory(prefix="gateway-runner-") as folder:
        files = {"GITHUB_EVENT_PATH": Path(folder, "event.json"), "GITHUB_OUTPUT": Path(folder, "output")}
        files["GITHUB_EVENT_PATH"].write_text(event)
        files["GITHUB_OUTPUT"].write_text("")
        environment: dict[str, str | None] = {
            **run.environment(),
            "GITHUB_WORKSPACE": str(workspace),
            **{name: str(path) for name, path in files.items()},
            **{f"INPUT_{name.upper()}": value for name, value in given.items()},
            **(changes or {}),
        }
        process = await asyncio.create_subprocess_exec(
            "node",
            str(action / declared["runs"]["main"]),
            env={name: value for name, value in environment.items() if value is not None},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        written = files["GITHUB_OUTPUT"].read_bytes().decode()
        return Step(process.returncode or 0, _outputs(written), out.decode(), written)


def _outputs(text: str) -> dict[str, str]:
    found = re.findall(r"^([\w-]+)<<(\S+)\n(.*?)\n\2$", text, re.MULTILINE | re.DOTALL)
    return {name: value for name, _, value in found}


def masked(log: str) -> str:
    """Return a log as GitHub shows it: what a step masked is not in it."""
    secrets = re.findall(r"^::add-mask::(.+)$", log, re.MULTILINE)
    lines = [line for line in log.splitlines() if not line.startswith("::add-mask::")]
    text = "\n".join(lines)
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class NothingToRunError(Exception):
    """There is no such dispatch, document or double; the text says which."""


async def play(options: argparse.Namespace) -> tuple[str, Step]:
    """Run the step of a run that a dispatch started; return the run's id and the step. Raises NothingToRunError."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        workflow = _workflow(options.subscription[0])
        query = {"workflow": workflow} | ({} if options.dispatch is None else {"dispatch": options.dispatch})
        asked = session.get(f"{options.github}/_double/event", params=query)
        missing = {409: f"{workflow} at the default branch does not list the dispatch's type, so GitHub starts no run"}
        event = await _json(
            asked, options.github, missing | {404: "there is no such dispatch"}, "sender", "repository", "branch"
        )
        sender_id = str(event["sender"]["id"])
        if options.sender is not None:
            event["sender"] = {"id": options.sender, "login": "somebody-else", "type": "User"}
        state = await _json(session.get(f"{options.github}/_double/state"), options.github, {}, "heads")
        repository = event["repository"]
        claims: dict[str, Any] = run_claims(
            repository=repository["full_name"],
            repository_id=repository["id"],
            workflow=workflow,
            workflow_sha=state["heads"][repository["full_name"]],
            branch=event["branch"],
            actor=event["sender"]["login"],
            actor_id=event["sender"]["id"],
        )
        if options.run_id is not None:
            claims["run_id"] = options.run_id
        claims |= {name: value or None for name, value in options.claim}
        asked = session.post(f"{options.issuer}/_double/run", json={"claims": claims})
        started = await _json(asked, options.issuer, {}, "run_id", "url", "token")
    run = Run(
        repository=repository["full_name"],
        repository_id=repository["id"],
        workflow=workflow,
        run_id=started["run_id"],
        token_url=started["url"],
        token=started["token"],
        branch=event["branch"],
    )
    inputs = {
        "receiver": options.receiver,
        "subscription": "\n".join(str(path) for path in options.subscription),
        "sender-id": sender_id,
    }
    return run.run_id, await step(run, json.dumps(event), inputs, workspace=options.workspace)


async def _json(call: Any, where: str, refusals: Mapping[int, str], *members: str) -> Any:
    """Return a double's answer, an object with these members; `refusals` says what a status means."""
    try:
        async with call as response:
            if response.status in refusals:
                raise NothingToRunError(f"{where}: {refusals[response.status]}")
            answer = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        answer = None
    if not isinstance(answer, dict) or not answer.keys() >= set(members):
        raise NothingToRunError(f"{where}: no double answers there")
    return answer


def _workflow(document: Path) -> str:
    """Return the path of the workflow that a document is compiled for."""
    try:
        workflow = json.loads(files.read(document, MAX_BYTES))["workflow"]
        if WORKFLOW.match(workflow):
            return str(workflow)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NothingToRunError(f"{document} is no compiled subscription")


def _claim(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or name not in CLAIMS:
        raise argparse.ArgumentTypeError(f"is written NAME=VALUE, and NAME is one of {', '.join(sorted(CLAIMS))}")
    return name, value


def _address(text: str) -> str:
    return text.rstrip("/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; return its exit code, 3 where there is nothing to run."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.doubles.runner",
        description=__doc__,
        epilog="Example: python -m gateway.doubles.runner --github http://127.0.0.1:8090 --issuer http://127.0.0.1:8092 "
        "--receiver http://127.0.0.1:8080 --subscription triage.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--github", type=_address, required=True, metavar="URL", help="the GitHub double")
    parser.add_argument("--issuer", type=_address, required=True, metavar="URL", help="the OIDC double")
    parser.add_argument("--receiver", required=True, metavar="URL", help="the gateway; plain http on loopback alone")
    told = "a compiled document of the workflow; may be repeated"
    parser.add_argument("--subscription", type=Path, required=True, action="append", metavar="FILE", help=told)
    parser.add_argument("--dispatch", metavar="ID", help="the dispatch that started the run; else the last one")
    parser.add_argument("--run-id", metavar="ID", help="run this run again; else a new one")
    parser.add_argument(
        "--sender", type=int, metavar="ID", help="the user who started the run, instead of the App's bot"
    )
    told = "another claim in the run's identity token; may be repeated"
    parser.add_argument("--claim", type=_claim, action="append", default=[], metavar="NAME=VALUE", help=told)
    options = parser.parse_args(arguments, argparse.Namespace(workspace=Path.cwd()))
    if not ACTION.is_dir():
        sys.stderr.write("runner double: the action stands in deploy/actions/admit of a clone; run this from there\n")
        return 3
    try:
        run_id, ended = asyncio.run(play(options))
    except NothingToRunError as error:
        sys.stderr.write(f"runner double: {error}\n")
        return 3
    except FileNotFoundError:
        sys.stderr.write("runner double: the step needs node, version 20 or newer, in PATH\n")
        return 3
    sys.stderr.write(masked(ended.log) + "\n")
    sys.stdout.write(json.dumps({"exit": ended.code, "run_id": run_id, "outputs": ended.outputs}) + "\n")
    return ended.code


if __name__ == "__main__":
    sys.exit(main())
