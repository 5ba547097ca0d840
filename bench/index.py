"""What a delivery costs with few and with many subscriptions enrolled: reader, index, matching and projection.

    python bench/index.py [--few 10] [--many 10000] [--rounds 2000]

Prints one JSON line with the microseconds of each and their ratio, for a delivery that one subscription wants and for one
that none grants; exits 1 if many cost more than 1.5 times what few cost. Rounds of the two alternate, and the median of
blocks counts, so that a busy machine slows both alike.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway.app import project
from gateway.compile import Target, compile_documents, encode
from gateway.declarations import load_connector
from gateway.delivery import RawDelivery
from gateway.events import read
from gateway.frontmatter import load_yaml
from gateway.match import match
from gateway.profiles import Source, load_profile
from gateway.selections import Import
from gateway.subscriptions import Enrolled, Index, build_index, event_type_for, load_subscription, seal
from gateway.verify import assumed

ROOT = Path(__file__).resolve().parent.parent
ORG = "11111111-1111-4111-8111-111111111111"
LIMIT = 1.5
BLOCK = 50


def team(number: int) -> str:
    return f"{number:08d}-3333-4333-8333-333333333333"


def enrolled(count: int) -> list[Enrolled]:
    """Subscriptions of one organization, each for a team of its own, as one big customer would have them."""
    connector = load_connector((ROOT / "subscriptions/connectors/linear.md").read_text(), "linear.md")
    consumer = load_yaml("on: {gateway-dispatch: {linear: [issue-created, issue-closed]}}", "c.md")
    bindings = {"workspace": "acme", "organizations": [ORG], "teams": [team(0)]}
    target = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64, 1)
    [first] = compile_documents(consumer, [Import(connector, bindings)], target)
    content = {name: value for name, value in first.items() if name != "digest"}
    return [
        Enrolled(load_subscription(encode(_for_team(content, number)), "d.json"), "s", 1) for number in range(count)
    ]


def _for_team(content: dict[str, Any], number: int) -> dict[str, Any]:
    """The document as another repository with another team would compile it."""
    repository = f"acme/app-{number}"
    grants = {"organizations": [ORG], "teams": [team(number)]}
    event_type = event_type_for(repository, content["workflow"])
    return seal(content | {"repository": repository, "event_type": event_type, "grants": grants})


def deliver(raw: RawDelivery, source: Source, index: Index) -> int:
    reading = read(assumed(raw, source), source, index.wanted("s"), raw.received_at)
    found = [(event, *match(event, source, index)) for event in reading.events]
    wanted = [(event, matches) for event, matches, _ in found if matches]
    project(raw, wanted, tuple(c for _, _, each in found for c in each)[:20], raw.received_at)
    return len(wanted)


def measure(
    raw: RawDelivery, source: Source, indexes: tuple[Index, Index], rounds: int, wanted: int
) -> tuple[float, float]:
    """Return the median microseconds of a delivery with each index."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(max(4, rounds // BLOCK)):
        for index, times in zip(indexes, taken, strict=True):
            start = time.perf_counter()
            for _ in range(BLOCK):
                assert deliver(raw, source, index) == wanted
            if turn:  # the first block warms up
                times.append((time.perf_counter() - start) / BLOCK * 1e6)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2_000)
    options = parser.parse_args()
    source = Source("s", load_profile(ROOT / "profiles/linear.yaml"), {"organization": (ORG,)})
    start = time.perf_counter()
    many = enrolled(options.many)
    loaded = time.perf_counter()
    index = build_index(many, {"s": source})
    built = time.perf_counter()
    indexes = (build_index(many[: options.few], {"s": source}), index)
    body: dict[str, Any] = json.loads((ROOT / "subscriptions/samples/linear.json").read_text())["body"]
    body |= {"webhookTimestamp": int(time.time() * 1000)}
    report: dict[str, Any] = {
        "few": options.few,
        "many": options.many,
        "index_s": round(built - loaded, 2),
        "load_s": round(loaded - start, 2),
    }
    worst = 0.0
    for name, number, wanted in (("granted", options.few - 1, 1), ("granted-by-nobody", 99_999_999, 0)):
        one = copy.deepcopy(body)
        one["data"]["teamId"] = one["data"]["team"]["id"] = team(number)
        headers = ((b"linear-event", b"Issue"), (b"linear-delivery", b"d-1"))
        raw = RawDelivery(
            "01890a5d-ac96-774b-bcce-b302099a8057", "s", time.time(), headers, b"", json.dumps(one).encode()
        )
        few_us, many_us = measure(raw, source, indexes, options.rounds, wanted)
        worst = max(worst, many_us / few_us)
        report[name] = {"few_us": round(few_us, 1), "many_us": round(many_us, 1), "ratio": round(many_us / few_us, 3)}
    report |= {"limit": LIMIT, "ok": worst <= LIMIT}
    print(json.dumps(report))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
