"""What tests of `enroll` and its like stand on: a configuration with sources, the App's key, commands run against it."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.audit import KEPT
from gateway.cli import main
from gateway.compile import encode
from gateway.environment import data_folder
from gateway.subscriptions import seal

EXAMPLES = data_folder("subscriptions") / "examples"
LINEAR = EXAMPLES / "linear-issue-created.json"
DIGEST = json.loads(LINEAR.read_bytes())["digest"]
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Desk:
    """A configuration in a folder of its own, and the commands run against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "gateway.toml"
        self.enrolled = folder / "enrolled"
        (folder / "app.pem").write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.configure()

    def configure(self, api_url: str = "http://127.0.0.1:1", extra: str = "") -> None:
        self.config.write_text(
            f"""
[store]
embedded = "store"
[github]
app_id = 1001
api_url = "{api_url}"
private_key = "file:{self.folder}/app.pem"
[subscriptions]
path = "enrolled"
[sources.linear-acme]
profile = "linear"
secrets = ["env:NOT_SET_HERE"]
identity = {{ organization = ["11111111-1111-4111-8111-111111111111"] }}
[sources.linear-other]
profile = "linear"
secrets = ["env:NOT_SET_HERE"]
identity = {{ organization = ["99999999-9999-4999-8999-999999999999"] }}
[sources.github-acme]
profile = "github"
secrets = ["env:NOT_SET_HERE"]
{extra}"""
        )

    def run(self, *arguments: str | Path) -> Result:
        return CliRunner().invoke(main, [*map(str, arguments), "--config", str(self.config)])

    def enroll(self, file: Path = LINEAR, source: str = "linear-acme", *more: str) -> Result:
        return self.run("enroll", file, "--source", source, "--installation", "5001", *more)

    def files(self) -> list[Path]:
        return [file for file in self.enrolled.iterdir() if file.name != KEPT]

    def rows(self) -> list[dict[str, Any]]:
        result = self.run("subscriptions", "--json")
        assert result.exit_code == 0, result.output
        rows: list[dict[str, Any]] = json.loads(result.stdout)["subscriptions"]
        return rows

    def document(self, **changes: Any) -> Path:
        content = json.loads(LINEAR.read_bytes()) | changes
        content = {name: value for name, value in content.items() if name != "digest" and value is not None}
        file = self.folder / "made.json"
        file.write_bytes(encode(seal(content)))
        return file
