"""Errors by whose fault: each says what its reader needs and nothing of a delivery."""

from gateway.errors import ConfigError, Problem, Rejection, Unavailable


def test_a_configuration_error_says_everything_at_once() -> None:
    one = Problem("gateway.toml", "sources.a", "has no profile", "name one")
    error = ConfigError([one, one])
    assert (
        str(error)
        == "gateway.toml: sources.a: has no profile (name one); gateway.toml: sources.a: has no profile (name one)"
    )
    assert error.problems == (one, one)


def test_a_rejection_has_a_slug_and_a_status() -> None:
    error = Rejection("signature", 401)
    assert (str(error), error.reason, error.status) == ("signature", "signature", 401)


def test_an_unavailability_says_when_to_come_back() -> None:
    assert (Unavailable("store").reason, Unavailable("store").retry_after_s) == ("store", 5)
    assert Unavailable("disk", 60).retry_after_s == 60


def test_a_quoted_file_cannot_steer_a_terminal() -> None:
    problem = Problem("a\x1b[2K.md", "k\x9b1m", "\u202eevil\ud800\x00", "caf\u00e9 \u65e5")
    assert str(problem) == "a\\x1b[2K.md: k\\x9b1m: \\u202eevil\\ud800\\x00 (caf\u00e9 \u65e5)"
