import json
import math
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway import strict_json
from gateway.errors import Rejection


def refusal(data: bytes) -> tuple[str, int]:
    with pytest.raises(Rejection) as caught:
        strict_json.loads(data)
    return caught.value.reason, caught.value.status


def outcome(data: bytes) -> tuple[str, int] | None:
    """Return what refused `data`, None where it was accepted; any other exception fails the test."""
    try:
        strict_json.loads(data)
    except Rejection as error:
        return error.reason, error.status
    return None


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":1,"b":[true,false,null,"x"]}', {"a": 1, "b": [True, False, None, "x"]}),
        (b' { "a" : 1.0 , "b" : 1e2 }\r\n\t', {"a": 1.0, "b": 100.0}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'"caf\\u00e9 \\ud83d\\ude00"', "caf\u00e9 \U0001f600"),
        (b"18446744073709551616", 18446744073709551616),
        (b"9007199254740993", 9007199254740993),
        (b"1e-999", 0.0),
        (b"-" + b"1" * 63, -int("1" * 63)),
        (b"0." + b"1" * 62, float("0." + "1" * 62)),
        (b'"\\ud800"', "\ud800"),
        (b'{"\\udfff":"\\ud800"}', {"\udfff": "\ud800"}),
        (b"[" * 128 + b"]" * 128, None),
        (b'{"a":' * 127 + b"[]" + b"}" * 127, None),
        (b'["' + b"[" * 500 + b'"]', ["[" * 500]),
        (b'["\\"' + b"{" * 500 + b'\\\\"]', ['"' + "{" * 500 + "\\"]),
        (b"[" + b"[]," * 300 + b"[]]", None),
    ],
)
def test_accepts(data: bytes, value: Any) -> None:
    decoded = strict_json.loads(data)
    if value is not None:
        assert decoded == value
        assert type(decoded) is type(value)


def test_negative_zero_and_types_are_kept() -> None:
    assert math.copysign(1, strict_json.loads(b"-0.0")) == -1
    assert isinstance(strict_json.loads(b"7.0"), float)
    assert isinstance(strict_json.loads(b"7e0"), float)
    assert isinstance(strict_json.loads(b"7"), int)
    assert strict_json.loads(b"true") is True


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "json-duplicate-key"),
        (b'{"a":1,"\\u0061":2}', "json-duplicate-key"),
        (b'[{"x":{"a":1,"b":2,"a":3}}]', "json-duplicate-key"),
        (b'{"\\ud800":1,"\\uD800":1}', "json-duplicate-key"),
        (b"NaN", "json-number"),
        (b"[Infinity]", "json-number"),
        (b"-Infinity", "json-number"),
        (b"1e400", "json-number"),
        (b"-1e400", "json-number"),
        (b"1" * 65, "json-number"),
        (b"-" + b"1" * 64, "json-number"),
        (b"0." + b"1" * 63, "json-number"),
        (b"1" * 5000, "json-number"),
        (b"[" * 129 + b"]" * 129, "json-depth"),
        (b'{"a":' * 128 + b"[]" + b"}" * 128, "json-depth"),
        (b"[" * 100_000, "json-depth"),
        (b"", "json-syntax"),
        (b"\xef\xbb\xbf", "json-syntax"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "json-syntax"),
        (b"{}x", "json-syntax"),
        (b"{} {}", "json-syntax"),
        (b"{'a':1}", "json-syntax"),
        (b"[1,]", "json-syntax"),
        (b"01", "json-syntax"),
        (b"+1", "json-syntax"),
        (b".5", "json-syntax"),
        (b"1.", "json-syntax"),
        (b'"\x01"', "json-syntax"),
        (b'"\xff"', "json-syntax"),
        (b'"\xed\xa0\x80"', "json-syntax"),
        (b'"\xc0\xaf"', "json-syntax"),
        (b'"\\x41"', "json-syntax"),
        (b"\xa0{}", "json-syntax"),
        (b"// comment\n{}", "json-syntax"),
        ("{}".encode("utf-16"), "json-syntax"),
        ("{}".encode("utf-32-le"), "json-syntax"),
        (b"]" * 200 + b"[" * 100, "json-syntax"),
        (b'"' + b"[" * 200, "json-syntax"),
        (b'"\\' + b"[" * 200 + b"\\", "json-syntax"),
    ],
)
def test_refuses(data: bytes, reason: str) -> None:
    assert refusal(data) == (reason, 400)


def test_has_surrogate() -> None:
    assert strict_json.has_surrogate("a\ud800")
    assert strict_json.has_surrogate("\udfff")
    assert not strict_json.has_surrogate("caf\u00e9 \U0001f600 \ud7ff\ue000")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b"[" * 1000)
@example(b'{"a":1,"a":NaN}')
def test_only_rejections_come_out(data: bytes) -> None:
    reasons = {"json-duplicate-key", "json-number", "json-depth", "json-syntax"}
    verdict = outcome(data)
    assert verdict is None or (verdict[0] in reasons and verdict[1] == 400)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_agrees_with_the_standard_library(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Both ways through (the fast one and the slow one) give what was written, types and order of members included."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=(",", ":"))
    decoded = strict_json.loads(text.encode())
    assert repr(decoded) == repr(json.loads(text))


def test_the_limit_holds_deep_in_a_call_stack() -> None:
    def down(levels: int) -> Any:
        return strict_json.loads(b'{"\\u0061":' * 127 + b"[]" + b"}" * 127) if levels == 0 else down(levels - 1)

    assert sys.getrecursionlimit() >= 1000
    assert isinstance(down(300), dict)


def test_a_body_of_nothing_but_brackets_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(Rejection, match="json-size"):
        strict_json.loads(b"[" + b"{}," * 200_000 + b"1]")
    assert len(strict_json.loads(b"[" + b"{}," * 100_000 + b"1]")) == 100_001


def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    for name in ("orjson", "json"):
        real = getattr(strict_json, name).loads

        def count(data: Any, real: Any = real, **more: Any) -> Any:
            decoded.append(len(data))
            return real(data, **more)

        monkeypatch.setattr(f"{name}.loads", count)
    for body in (b"[" + b"1," * 12_000_000 + b"1]", b"[" + b"{}," * 200_000 + b"1]"):
        with pytest.raises(Rejection, match="json-size"):
            strict_json.loads(body)
    assert decoded == []
    assert strict_json.loads(b"[1]") == [1]
    assert decoded == [3]
    assert len(strict_json.loads(b"[" + b"1," * 999_999 + b"1]")) == 1_000_000
