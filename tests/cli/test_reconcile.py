"""What the end of `gateway reconcile` says."""

import pytest

from gateway.cli.reconcile import exit_code
from gateway.reconcile import Row
from gateway.suspension import state_of


def row(reason: str | None, agrees: bool | None) -> Row:
    state = "active" if reason == "attested" else state_of(reason)
    return Row("sha256:" + "a" * 64, "linear-acme", "acme/app", 11, state, reason, agrees)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 0),
        ([row(None, True)], 0),
        ([row("workflow-pending", False), row("workflow-superseded", False)], 0),
        ([row("attested", None)], 0),
        ([row(None, True), row("workflow-hash", False)], 1),
        ([row("opt-in-revoked", True)], 1),
        ([row("opt-in-revoked", None), row(None, None)], 1),
        ([row(None, None)], 3),
        ([row("workflow-pending", None)], 3),
    ],
)
def test_exit_codes(rows: list[Row], code: int) -> None:
    assert exit_code(rows) == code
