"""Run every trigger vector and print how many fire, how many near misses and hostile bodies do not, per trigger.

    python bench/triggers.py [--all] [--json]

GitHub's activities are one row a family, unless `--all`. Exits 1 if a vector ends otherwise than it should.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway import families
from gateway.delivery import Outcome
from tests.trigger_vectors import KINDS, Case, cases, run


def row_of(case: Case, *, every: bool) -> tuple[str, str]:
    connector, trigger = case.selected.connector, case.selected.trigger
    if every or connector != families.CONNECTOR or trigger == families.SLASH_COMMAND:
        return connector, trigger
    family = next(
        f for f, r in families.FAMILIES.items() for a in r.activities if families.trigger_name(f, a) == trigger
    )
    return connector, f"{family}-* ({len(families.FAMILIES[family].activities)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="one row for every activity of GitHub")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = {}
    wrong = 0
    for case in cases():
        good = (run(case).outcome == Outcome.FORWARDED) == (case.kind == "fires")
        wrong += not good
        if not good:
            print(f"WRONG {case}", file=sys.stderr)
        counts.setdefault(row_of(case, every=options.all), Counter())[case.kind] += good
    if options.json:
        rows = [{"provider": c, "trigger": t, **{kind: counts[c, t][kind] for kind in KINDS}} for c, t in counts]
        print(json.dumps({"triggers": rows, "wrong": wrong}))
        return 1 if wrong else 0
    print(f"| {'provider':12} | {'trigger':36} | fires | near-miss | hostile |")
    print(f"|{'-' * 14}|{'-' * 38}|------:|----------:|--------:|")
    for (connector, trigger), row in sorted(counts.items()):
        print(f"| {connector:12} | {trigger:36} | {row['fires']:5} | {row['near-miss']:9} | {row['hostile']:7} |")
    total = sum(counts.values(), Counter())
    print(
        f"| {'all':12} | {f'{len(counts)} rows':36} | {total['fires']:5} | {total['near-miss']:9} | {total['hostile']:7} |"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
