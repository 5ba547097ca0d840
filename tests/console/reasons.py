"""The reasons that the code can refuse a delivery with, read from its text."""

import re
from pathlib import Path

CALL = re.compile(r'Rejection\(\s*"([a-z0-9-]+)"')


def rejections() -> set[str]:
    return {
        slug
        for path in (Path(__file__).parents[2] / "gateway").rglob("*.py")
        if path.stem not in {"oidc", "admission"}  # those refuse runs
        for slug in CALL.findall(path.read_text())
    }
