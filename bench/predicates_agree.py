"""Run a million generated predicates through the evaluator and through an independent reference; report disagreements.

    python bench/predicates_agree.py [--cases 1000000] [--seed 1]

Prints one JSON line and exits 1 if any case disagrees, raises, or is explained wrongly. Unlike the property test it
draws from a plain random generator, which is fast enough for this many cases.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway.evidence import Evidence
from gateway.predicates import compile_predicate, evaluate, explain
from tests.reference_predicates import reference

SCALARS = ["a", "b", "1", "a;b", "b; a", "", "a\ud800", "é", 0, 1, 2, -1, 1.0, 1.5, 0.0, -0.0, True, False, None]
LITERALS = ["a", "b", "1", "", 0, 1, 2, 1.5, True, False]
POINTERS = [
    *["/a", "/b", "/c", "/a/a", "/a/b"] * 3,
    "",
    "/a",
    "/b",
    "/c",
    "/a/a",
    "/a/b",
    "/a/0",
    "/b/1",
    "/c/a/b",
    "/a/-",
    "/a/00",
    "@fact",
    "@none",
]
REFERENCES = [*POINTERS, "name", "nope"]
WILD = ["/a", "/a/*", "/*/a", "/*", "", "/b/*/a"]


def value(rng: random.Random, depth: int = 3) -> Any:
    shape = rng.random()
    if depth == 0 or shape < 0.45:
        return rng.choice(SCALARS)
    if shape < 0.7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {key: value(rng, depth - 1) for key in rng.sample("abc", rng.randrange(4))}


def body(rng: random.Random) -> Any:
    """Mostly an object whose members are there and of a few values, so that tests find something to decide on."""
    if rng.random() < 0.1:
        return value(rng)
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice(["a", "b"]),
        lambda: rng.choice([1, 2]),
        lambda: rng.choice([True, False, None]),
        lambda: rng.sample(["a", "b", "1", 1], rng.randrange(3)),
        lambda: [{"a": rng.choice(["a", "b"]), "b": rng.choice(["a", 1])} for _ in range(rng.randrange(3))],
        lambda: {"a": rng.choice(["a", "b"]), "b": rng.choice(["a", "b"])},
        lambda: value(rng, 2),
    ]
    if rng.random() < 0.4:  # before and after of one kind
        kinds = [rng.choice(kinds)]
    return {key: rng.choice(kinds)() for key in "abc" if rng.random() < 0.95}


def some(rng: random.Random, values: list[Any]) -> list[Any]:
    return [rng.choice(values) for _ in range(rng.randint(1, 3))]


def sides(rng: random.Random, **optional: Callable[[], Any]) -> dict[str, Any]:
    members = {"before": rng.choice(POINTERS), "after": rng.choice(POINTERS)}
    return members | {key.rstrip("_"): make() for key, make in optional.items() if rng.random() < 0.4}


def leaf(rng: random.Random) -> dict[str, Any]:
    pick = rng.choice
    makers: dict[str, Callable[[], Any]] = {
        "equals": lambda: [pick(POINTERS), pick(LITERALS)],
        "in": lambda: [pick(POINTERS), some(rng, LITERALS)],
        "present": lambda: pick(POINTERS),
        "null": lambda: pick(POINTERS),
        "first-token": lambda: [pick(POINTERS), pick(["a", "b"])],
        "agree": lambda: some(rng, REFERENCES),
        "differ": lambda: [pick(REFERENCES), pick(REFERENCES)],
        "contains": lambda: [pick(WILD), pick(LITERALS)],
        "changed": lambda: sides(rng, from_=lambda: some(rng, LITERALS), to=lambda: some(rng, LITERALS)),
        "added": lambda: sides(rng, separator=lambda: ";"),
        "removed": lambda: sides(rng, separator=lambda: ";"),
    }
    name = pick(list(makers))
    return {name: makers[name]()}


def spec(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    shape = rng.random()
    if depth == 0 or shape < 0.4:
        return leaf(rng)
    if shape < 0.75:
        return {rng.choice(["all", "any"]): [spec(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if shape < 0.88:
        return {"not": spec(rng, depth - 1)}
    return {"one": {"in": rng.choice(POINTERS), "where": spec(rng, depth - 1), "then": spec(rng, depth - 1)}}


def agrees(rng: random.Random, seen: Counter[str]) -> bool:
    declared, document = spec(rng), body(rng)
    facts, names = {"fact": rng.choice(["a", "b", ""])}, {"name": value(rng, 1)}
    predicate, evidence = compile_predicate(declared), Evidence(document, facts, names)
    answer = evaluate(predicate, evidence)
    seen[str(answer)] += 1
    explained = explain(predicate, evidence)
    return reference(declared, document, facts, names) is answer and (explained is None) is (answer is True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, seen, started = random.Random(options.seed), Counter[str](), time.monotonic()
    wrong = sum(not agrees(rng, seen) for _ in range(options.cases))
    elapsed_s = round(time.monotonic() - started, 1)
    print(
        json.dumps(
            {
                "cases": options.cases,
                "seed": options.seed,
                "disagreements": wrong,
                "answers": dict(seen),
                "elapsed_s": elapsed_s,
            }
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
