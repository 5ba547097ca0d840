"""The admin side called as a server would call it, on a real store, with the shipped examples enrolled."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.app import Gateway, public_app
from gateway.configuration import Configuration, load_configuration
from gateway.console import admin_app
from gateway.demo import make_secret
from gateway.environment import data_folder
from gateway.health import Lookout
from gateway.profiles import JwtProof, load_profiles
from gateway.samples import load_samples

TOKEN = "an-operators-token-of-some-length"


def write_configuration(folder: Path) -> Configuration:
    """The shipped samples' sources with their examples enrolled."""
    profiles = load_profiles(data_folder("profiles"))
    (folder / "key").write_text("x" * 40)
    (folder / "operator").write_text(TOKEN)
    lines = ["[server]", f'operator_tokens = ["file:{folder}/operator"]', 'admin_hosts = ["console.example"]']
    lines += [
        "[store]",
        'url = "redis://127.0.0.1:1/0"',
        "[github]",
        "app_id = 1",
        f'private_key = "file:{folder}/key"',
    ]
    lines += ["[subscriptions]", f'path = "{data_folder("subscriptions") / "examples"}"']
    for sample in load_samples():
        name, profile = sample["source"], profiles[sample["profile"]]
        lines += [f"[sources.{name}]", f'profile = "{profile.name}"']
        if not isinstance(profile.proof, JwtProof):
            (folder / name).write_bytes(make_secret(profile))
            lines.append(f'secrets = ["file:{folder}/{name}"]')
        lines += [f"identity.{key} = {json.dumps(values)}" for key, values in sample.get("identity", {}).items()]
    for sample in load_samples():
        document = json.loads((data_folder("subscriptions") / "examples" / sample["subscription"]).read_text())
        lines += ["[[enrollments]]", f'subscription = "{document["digest"]}"', f'source = "{sample["source"]}"']
        lines.append("installation = 7")
    (folder / "gateway.toml").write_text("\n".join(lines))
    return load_configuration(folder / "gateway.toml")


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """`cookies` are kept as a browser would."""

    gateway: Gateway
    host: str = "localhost:8081"
    peer: str = "127.0.0.1"
    cookies: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lookout = Lookout(lambda: self.gateway.configuration, self.gateway.store)
        self.app = admin_app(self.gateway, self.lookout)
        self.public = public_app(self.gateway)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        host: list[str] | None = None,
        public: bool = False,
    ) -> Answered:
        target, _, query = path.partition("?")
        pairs = [(b"host", one.encode()) for one in ([self.host] if host is None else host)]
        pairs += [(key.lower().encode(), value.encode()) for key, value in (headers or {}).items()]
        if self.cookies:
            pairs.append((b"cookie", "; ".join(f"{k}={v}" for k, v in self.cookies.items()).encode()))
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "headers": pairs,
            "http_version": "1.1",
            "scheme": "http",
            "server": ("10.0.0.5", 8081),
            "client": (self.peer, 9),
            "root_path": "",
        }
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await (self.public if public else self.app)(scope, receive, send)
        answered = {key.decode().lower(): value.decode() for key, value in sent[0]["headers"]}
        if "set-cookie" in answered:
            name, _, value = answered["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return Answered(sent[0]["status"], answered, b"".join(m.get("body", b"") for m in sent[1:]))

    async def get(self, path: str, **headers: str) -> Answered:
        return await self.call("GET", path, headers=headers)

    async def form(self, path: str, fields: Mapping[str, Any], **headers: str) -> Answered:
        kind = {"content-type": "application/x-www-form-urlencoded", **headers}
        return await self.call("POST", path, urlencode(fields, doseq=True).encode(), kind)

    async def change(self, path: str, body: Any, token: str | None = TOKEN) -> Answered:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return await self.call("POST", path, json.dumps(body).encode(), headers)

    async def log_in(self) -> str:
        """Log in; return the value that this session's forms must carry."""
        answered = await self.form("/login", {"token": TOKEN})
        assert answered.status == 303, answered.text
        return (await self.get("/")).text.partition('name="csrf" value="')[2].partition('"')[0]
