import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.cli.desk import KEY, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def github(tmp_path: Path) -> Iterator[str]:
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "app.pub").write_bytes(public)
    command = [
        "-m",
        "gateway.doubles.github",
        "--port",
        "0",
        "--app-id",
        "1001",
        "--public-key",
        str(tmp_path / "app.pub"),
    ]
    process = subprocess.Popen(
        [sys.executable, *command, "--installation", "5001=Acme/App"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["url"]
    process.terminate()
    process.wait(10)
    process.stdout.close()
