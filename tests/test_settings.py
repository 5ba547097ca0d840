import json
from pathlib import Path

import pytest

from gateway.addresses import check_https
from gateway.configuration import load_configuration
from gateway.environment import check_reference, data_folder, resolve
from gateway.errors import ConfigError
from gateway.settings import MODES

GOOD = """
[store]
embedded = "store"
[github]
app_id = 1
private_key = "env:TEST_APP_KEY"
[sources.linear-acme]
profile = "linear"
secrets = ["env:TEST_LINEAR"]
identity = { organization = ["11111111-1111-4111-8111-111111111111"] }
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_APP_KEY", "key")
    monkeypatch.setenv("TEST_LINEAR", "planted-secret")
    monkeypatch.setenv("TEST_EMPTY", "")


def problems(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_configuration(path)
    for problem in caught.value.problems:
        assert problem.file
        assert problem.fix
        assert "planted-secret" not in str(problem)
    return [(problem.key, problem.problem) for problem in caught.value.problems]


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(GOOD)
    loaded = load_configuration(path)
    assert loaded.sources["linear-acme"].profile.name == "linear"
    assert loaded.settings.sources["linear-acme"].references() == (("0", "env:TEST_LINEAR", None),)


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_configuration(tmp_path / "none.toml")
    assert "TOML" in problems(tmp_path, "[[")[0][1]
    assert "TOML" in problems(tmp_path, "a=" + "[" * 100_000)[0][1]
    with pytest.raises(ConfigError, match="Is a directory"):
        load_configuration(tmp_path)


def test_unknown_keys_are_refused_all_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD + '\nsecrte = "x"\n[srever]\nbind = "x"\n')
    assert {key for key, _ in found} == {"sources.linear-acme.secrte", "srever"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (('secrets = ["env:TEST_LINEAR"]', "secrets = []"), "sources.linear-acme.secrets"),
        (('secrets = ["env:TEST_LINEAR"]', ""), "sources.linear-acme.secrets"),
        (("env:TEST_LINEAR", "env:TEST_EMPTY"), "sources.linear-acme.secrets.0"),
        (("env:TEST_LINEAR", "env:TEST_UNSET"), "sources.linear-acme.secrets.0"),
        (("env:TEST_LINEAR", "file:/nonexistent"), "sources.linear-acme.secrets.0"),
        (('profile = "linear"', 'profile = "linaer"'), "sources.linear-acme.profile"),
        (("organization =", "organisation ="), "sources.linear-acme.identity.organisation"),
        (('embedded = "store"', ""), "store"),
        (('embedded = "store"', 'url = "http://x"'), "store"),
        (("app_id = 1", "app_id = 1\nsender_id = 41898282"), "github.sender_id"),
        (("app_id = 1", 'app_id = 1\napi_url = "http://api.example.com"'), "github.api_url"),
    ],
)
def test_each_mistake_names_its_key(tmp_path: Path, change: tuple[str, str], key: str) -> None:
    assert key in [found for found, _ in problems(tmp_path, GOOD.replace(*change))]


def test_one_run_shows_what_it_can_of_a_malformed_file(tmp_path: Path) -> None:
    text = GOOD.replace("env:TEST_APP_KEY", "file:app.pem").replace("env:TEST_LINEAR", "env:TEST_UNSET")
    keys = [key for key, _ in problems(tmp_path, text.replace('profile = "linear"', 'profile = "linaer"'))]
    assert keys == ["github.private_key", "sources.linear-acme.profile", "sources.linear-acme.secrets.0"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('["11111111-1111-4111-8111-111111111111"]', '"1111"'), "is not a list"),
        (('secrets = ["env:TEST_LINEAR"]', 'secrets = "env:TEST_LINEAR"'), "must be a list of references"),
        (("app_id = 1", "app_id = 1\nbnd = 2"), "is no key that is known here"),
        (("env:TEST_APP_KEY", "file:app.pem"), "absolute path"),
        (("[github]\napp_id = 1", "[github]"), "is missing"),
    ],
)
def test_mistakes_are_told_in_an_operators_words(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    [(_, problem)] = problems(tmp_path, GOOD.replace(*change))
    assert said in problem


def test_a_literal_secret_is_refused_and_never_shown(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace("env:TEST_LINEAR", "planted-secret"))
    assert found[0][0].startswith("sources.linear-acme.secrets")


def test_two_sources_for_one_digest_and_missing_documents(tmp_path: Path) -> None:
    entry = '[[enrollments]]\nsubscription = "sha256:' + "0" * 64 + '"\nsource = "%s"\ninstallation = 1\n'
    found = problems(tmp_path, GOOD + entry % "linear-acme" + entry % "nobody")
    assert [key for key, _ in found] == ["enrollments.0.subscription", "enrollments.1.source"]


def test_a_jwt_source_takes_no_secrets(tmp_path: Path) -> None:
    forge = GOOD + '[sources.wiki]\nprofile = "forge"\nsecrets = ["env:TEST_LINEAR"]\n'
    keys = [key for key, _ in problems(tmp_path, forge)]
    assert "sources.wiki.secrets" in keys
    assert {"sources.wiki.identity.app", "sources.wiki.identity.cloud"} <= set(keys)


def test_references_and_urls() -> None:
    assert check_reference("env:A_1") == "env:A_1"
    for bad in ("plain", "env:", "env:A B", "file:relative", "http://x"):
        with pytest.raises(ValueError, match=r"reference|absolute"):
            check_reference(bad)
    assert check_https("https://api.example.com/") == "https://api.example.com"
    assert check_https("http://127.0.0.1:99") == "http://127.0.0.1:99"
    assert check_https("http://[::1]:99") == "http://[::1]:99"
    for bad in (
        "http://example.com",
        "http://127.0.0.1.example.com",
        "ftp://x",
        "https://u@h",
        "https://h?q",
        "https://",
    ):
        with pytest.raises(ValueError, match="https"):
            check_https(bad)


def test_resolve_strips_one_newline_and_refuses_empty(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"a\n\n")
    assert resolve(f"file:{file}") == b"a\n"
    file.write_bytes(b"\n")
    with pytest.raises(ValueError, match="is empty"):
        resolve(f"file:{file}")


SOURCE = 'profile = "linear"\nsecrets = ["env:TEST_LINEAR"]\n'
PUBLIC = "server.public_url"
BIND = "server.bind"


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ('[server]\npublic_url = "https://h.example:99999"', PUBLIC, "ports go from 1 to 65535"),
        ('[server]\npublic_url = "https://h.example:x"', PUBLIC, "ports go from 1 to 65535"),
        ('[server]\npublic_url = "https://h.example:0"', PUBLIC, "the port 0"),
        ('[server]\npublic_url = "https://[::1"', PUBLIC, "host or a port"),
        ('[server]\npublic_url = "https://h ost"', PUBLIC, "control character"),
        ('[server]\npublic_url = "https://h.example\\n/x"', PUBLIC, "control character"),
        (f'[server]\npublic_url = "https://{"a" * 64}.example"', PUBLIC, "no valid host name"),
        ('[server]\npublic_url = "https://300.1.1.1"', PUBLIC, "no valid host name"),
        ('[server]\nbind = "300.1.1.1:80"', BIND, "address of this machine"),
        ('[server]\nbind = "no host:80"', BIND, "address of this machine"),
        ('[server]\nbind = "::1:80"', BIND, "address of this machine"),
        ('[server]\nbind = "127.0.0.1:70000"', BIND, "HOST:PORT"),
        ("[server]\nbind = 80", BIND, "is not text"),
        ('[server]\ntrusted_proxies = ["10.0.0.0/8", "x", "10.1.2.3/8"]', "server.trusted_proxies", "10.0.0.0/8"),
        ('[server]\ntrusted_proxies = ["x", "y"]', "server.trusted_proxies", "entry 1"),
        ('[server]\nadmin_hosts = ["a.example:80", "https://b"]', "server.admin_hosts", "entry 1"),
        ("[limits]\nfailures_per_s = inf", "limits.failures_per_s", "finite"),
        ("[limits]\nqueue = true", "limits.queue", "whole number"),
        ('[limits]\nqueue = "5"', "limits.queue", "whole number"),
        ('[admission]\naudience_prefix = ""', "admission.audience_prefix", "is empty"),
        ('[subscriptions]\npath = "gateway.toml"', "subscriptions.path", "Not a directory"),
        ('[subscriptions]\npath = "loop"', "subscriptions.path", "symbolic links"),
        ('[subscriptions]\npath = "\\u0000"', "subscriptions.path", "null byte"),
        (f'[sources."a\\n"]\n{SOURCE}identity.organization = ["o"]', "sources.a\\n", "no source name"),
        (f'[sources.a]\n{SOURCE}identity.organization = [""]', "sources.a.identity.organization.0", "is empty"),
        ('[sources.a]\nprofile = "github"\nsecrets = {a = 1}', "sources.a.secrets", "list of references"),
        ('[sources.a]\nprofile = "github"\nsecrets = {a = {b = "env:X"}}', "sources.a.secrets", "list of references"),
        ('[sources.a]\nprofile = "github"\nsecrets = ["env:TEST_LINES"]', "sources.a.secrets.0", "line break"),
        ('[sources.a]\nprofile = "github"\nsecrets = ["env:TEST_BYTES"]', "sources.a.secrets.0", "UTF-8"),
        ('[sources.a]\nprofile = "github"\nsecrets = ["file:/dev/zero"]', "sources.a.secrets.0", "regular file"),
        ('[sources.a]\nprofile = "github"\nsecrets = ["file:/\\u0000"]', "sources.a.secrets.0", "null byte"),
        (
            '[sources.a]\nprofile = "github"\nsecrets = ["env:TEST_LINEAR"]\napi_token = "env:TEST_LINES"',
            "sources.a.api_token",
            "line break",
        ),
    ],
)
def test_what_would_fail_later_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, key: str, said: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("TEST_LINES", "planted-secret\nof two lines")
    monkeypatch.setenv("TEST_BYTES", "planted-secret\udcff")
    ((found, problem),) = problems(tmp_path, f"{GOOD}\n{line}\n")
    assert found == key
    assert said in problem


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:99999/0", "ports"),
        ("redis://u:planted-secret@127.0.0.1:x/0", "ports"),
        ("redis://u:planted secret@h/0", "control character"),
        ("redis://h/zero", "database's number"),
        ("redis:///0", "host name"),
        ("redis://[::1/0", "host or a port"),
        ("unix:///s?db=x", "no number"),
        ("unix://s", "url must be"),
        ("redis+sentinel://h:1", "master name"),
        ("redis+sentinel://h:1,x y/main/0", "control character"),
        ("redis+sentinel://h:1,:2/main/0", "host name"),
        ("redis+cluster://h:1/3", "database 0 only"),
        ("rediss://h/0?ssl_ca_certs=/nonexistent", "is no file"),
    ],
)
def test_a_store_address_is_looked_at_without_the_store(tmp_path: Path, url: str, said: str) -> None:
    ((key, problem),) = problems(tmp_path, GOOD.replace('embedded = "store"', f'url = "{url}"'))
    assert key.startswith("store")
    assert said in problem


@pytest.mark.parametrize("url", ["redis://u:p%20w@h:1/2", "rediss://h", "unix:///s?db=1", "redis+cluster://h:1,h:2"])
def test_store_addresses_that_are_good(tmp_path: Path, url: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(GOOD.replace('embedded = "store"', f'url = "{url}"'))
    assert load_configuration(path).settings.store.url == url


def test_an_embedded_store_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    assert problems(tmp_path, GOOD) == [("store.embedded", "is no folder")]


def test_the_list_is_complete_whatever_is_malformed(tmp_path: Path) -> None:
    """Faults of the file's shape hide nothing of what only a look at profiles, secrets and documents finds."""
    folder = tmp_path / "subscriptions" / "enrolled"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    (folder / "folder.toml").mkdir()
    text = """
[server]
bind = 1
public_url = "https://h.example:x"
operator_tokens = ["env:TEST_UNSET", "planted-secret"]
[github]
private_key = "planted-secret"
[notifications]
url = "http://plain.example"
[tracing]
[sources.a]
profile = "linear"
mode = "maybe"
secrets = ["env:TEST_UNSET", "planted-secret"]
identity.organisation = ["o"]
[sources.b]
profile = "slack"
api_oauth = {token_url = "http://x"}
[sources.c]
profile = "linaer"
[sources.d]
secrets = 1
[[enrollments]]
source = "a"
"""
    found = problems(tmp_path, text)
    assert sorted(key for key, _ in found) == [
        "",  # broken.json
        "",  # folder.toml
        "enrollments.0.installation",
        "enrollments.0.subscription",
        "github.app_id",
        "github.private_key",
        "notifications.secret",
        "notifications.url",
        "server.bind",
        "server.operator_tokens",
        "server.public_url",
        "sources.a.identity.organisation",
        "sources.a.identity.organization",
        "sources.a.mode",
        "sources.a.secrets.0",
        "sources.a.secrets.1",
        "sources.b.api_oauth.client_id",
        "sources.b.api_oauth.client_secret",
        "sources.b.api_oauth.scope",
        "sources.b.api_oauth.token_url",
        "sources.b.identity.app",
        "sources.b.identity.workspace",
        "sources.b.secrets",
        "sources.c.profile",
        "sources.d.profile",
        "sources.d.secrets",
        "store",
        "tracing.endpoint",
    ]


@pytest.mark.parametrize("source", MODES)
@pytest.mark.parametrize("enrollment", MODES)
def test_the_stricter_mode_wins(tmp_path: Path, source: str, enrollment: str) -> None:
    document = (data_folder("subscriptions") / "examples" / "linear-issue-created.json").read_bytes()
    folder = tmp_path / "subscriptions" / "enrolled"
    folder.mkdir(parents=True)
    (folder / "a.json").write_bytes(document)
    entry = (
        f'[[enrollments]]\nsubscription = "{json.loads(document)["digest"]}"\nsource = "linear-acme"\n'
        f'installation = 1\nmode = "{enrollment}"\n'
    )
    path = tmp_path / "gateway.toml"
    path.write_text(GOOD.replace('profile = "linear"', f'profile = "linear"\nmode = "{source}"') + entry)
    (one,) = load_configuration(path).enrolled
    assert one.mode == max(source, enrollment, key=["auto", "ask", "deny"].index)
