"""The Business Rule of the documents: run as ServiceNow would, what it sends is proven and fires."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.delivery import RawDelivery
from gateway.events import read
from gateway.profiles import Source, load_profile
from gateway.verify import KeyRing, Secret, verify
from gateway.wire.instructions import servicenow
from gateway.wire.types import Want

ROOT = Path(__file__).parent.parent
SOURCE = Source("snow-acme", load_profile(ROOT / "profiles/servicenow.yaml"), {"instance": ("acme.service-now.com",)})
KEY = base64.b64encode(b"k" * 32).decode()
STAND_INS = """
const crypto = require('crypto');
const sent = {headers: {}};
const gs = {getProperty: name => name === 'gateway.snow-acme.key' ? process.argv[2] : null};
class GlideDateTime {
  getValue() { return new Date().toISOString().slice(0, 19).replace('T', ' '); }
  getNumericValue() { return Date.now(); }
}
class GlideCertificateEncryption {
  generateMac(key, algorithm, data) {
    if (algorithm !== 'HmacSHA256') throw new Error(algorithm);
    return crypto.createHmac('sha256', Buffer.from(key, 'base64')).update(data, 'utf8').digest('base64');
  }
}
const sn_ws = {RESTMessageV2: class {
  setHttpMethod(method) { sent.method = method; }
  setEndpoint(url) { sent.url = url; }
  setRequestHeader(name, value) { sent.headers[name.toLowerCase()] = value; }
  setRequestBody(body) { sent.body = body; }
  executeAsync() { console.log(JSON.stringify(sent)); }
}};
const record = {sys_mod_count: '7'};
const current = {
  getTableName: () => 'incident', getUniqueValue: () => '9d385017c611228701d22104cc95c371', getValue: name => record[name],
};
const previous = {};
"""


def script() -> str:
    want = Want("snow-acme", "https://hooks.example.com/hooks/snow-acme", "", True, ())
    text = servicenow(want, SOURCE, "file:/run/secrets/snow")
    end = "(current, previous);"
    return text[text.index("(function executeRule") : text.index(end) + len(end)]


def test_the_page_shows_the_script_that_wire_prints() -> None:
    page = (ROOT / "docs/providers/servicenow.md").read_text()
    assert f"```js\n{script()}\n```" in page


@pytest.mark.skipif(shutil.which("node") is None, reason="needs a JavaScript engine: node")
def test_what_the_script_sends_is_proven_and_read(tmp_path: Path) -> None:
    (tmp_path / "rule.js").write_text(STAND_INS + script())
    done = subprocess.run(
        ["node", "rule.js", KEY], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30
    )
    sent: dict[str, Any] = json.loads(done.stdout)
    assert (sent["method"], sent["url"]) == ("POST", "https://hooks.example.com/hooks/snow-acme")
    headers = tuple((name.encode(), value.encode()) for name, value in sent["headers"].items())
    raw = RawDelivery("d", SOURCE.name, time.time(), headers, b"", sent["body"].encode())
    keys = KeyRing((Secret("0", b"whsec_" + KEY.encode()),))
    [event] = read(verify(raw, SOURCE, keys, raw.received_at), SOURCE, {"record.updated"}, raw.received_at).events
    assert event.body == {
        "type": "record.updated",
        "timestamp": event.body["timestamp"],
        "data": {
            "instance": "acme.service-now.com",
            "table": "incident",
            "sys_id": "9d385017c611228701d22104cc95c371",
            "sys_mod_count": 7,
        },
    }
    assert event.dedupe == ("id:9d385017c611228701d22104cc95c371-7",)
