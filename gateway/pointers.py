"""JSON Pointer (RFC 6901, https://www.rfc-editor.org/rfc/rfc6901) over decoded JSON; never raises on data."""

from typing import Any, Final


class Missing:
    """The type of `MISSING`: a pointer that resolves to nothing, which is not null."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


def parse(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its reference tokens; `""` is the whole document. Raises ValueError on bad syntax."""
    if pointer == "":
        return ()
    if not pointer.startswith("/"):
        raise ValueError("a JSON Pointer starts with /")
    tokens = pointer[1:].split("/")
    for token in tokens:
        rest = token.replace("~0", "").replace("~1", "")
        if "~" in rest:
            raise ValueError("~ must be followed by 0 or 1")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


def resolve(document: Any, tokens: tuple[str, ...]) -> Any:
    """Follow parsed tokens; return the value (None for an explicit null) or `MISSING`."""
    value = document
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token, MISSING)
        elif isinstance(value, list):
            # "-", signs, leading zeros and non-ASCII digits are no indices; the length bound keeps int() linear
            if not (token.isascii() and token.isdigit()) or len(token) > 9 or (len(token) > 1 and token[0] == "0"):
                return MISSING
            index = int(token)
            if index >= len(value):
                return MISSING
            value = value[index]
        else:
            return MISSING
    return value
