from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.settings import check_https, check_reference, load_configuration, resolve

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
