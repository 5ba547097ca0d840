"""A second evaluator for predicates, written from the rules alone and shaped differently: it interprets the declared form
directly, with truth as a number (0 false, 1/2 unknown, 1 true), so that `all` is min, `any` is max and `not` is 1 - x.

It shares no code with the package and does not care for speed.
"""

import json
from typing import Any

F, U, T = 0.0, 0.5, 1.0


def truth(number: float) -> bool | None:
    return {F: False, U: None, T: True}[number]


class Nothing(Exception):  # noqa: N818
    """There is no such place."""


def walk(document: Any, steps: list[str]) -> Any:
    if not steps:
        return document
    step, *rest = steps
    if isinstance(document, dict) and step in document:
        return walk(document[step], rest)
    if isinstance(document, list) and step in map(str, range(len(document))):
        return walk(document[int(step)], rest)
    raise Nothing


def steps_of(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def broken(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


class World:
    def __init__(self, document: Any, facts: dict[str, Any], names: dict[str, Any]) -> None:
        self.document, self.facts, self.names = document, facts, names

    def find(self, ref: str, here: Any) -> list[Any]:
        """[] for nothing, [value] for a value; broken text is a value of no kind."""
        try:
            if ref.startswith("@"):
                return [self.facts[ref[1:]]]
            if ref and not ref.startswith("/"):
                return [self.names[ref]]
            return [walk(here, steps_of(ref))]
        except (Nothing, KeyError):
            return []


def stamp(value: Any) -> str | None:
    """A text that is equal for equal scalars alone: JSON writes 1, "1", true and 1.0 differently. None: no scalar."""
    if isinstance(value, str):
        return None if broken(value) else json.dumps(value)
    if isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return json.dumps(0.0 if value == 0 else value)
    return None


def sort(value: Any) -> str:
    return type(value).__name__


def member(value: Any, listed: list[Any]) -> float:
    if stamp(value) is None:
        return U
    if stamp(value) in {stamp(item) for item in listed}:
        return T
    return F if sort(value) in {sort(item) for item in listed} else U


def judge(spec: Any, world: World, here: Any) -> float:
    ((name, arg),) = spec.items()
    match name:
        case "all":
            return min(judge(part, world, here) for part in arg)
        case "any":
            return max(judge(part, world, here) for part in arg)
        case "not":
            return 1 - judge(arg, world, here)
        case "equals":
            found = world.find(arg[0], here)
            return member(found[0], [arg[1]]) if found else U
        case "in":
            found = world.find(arg[0], here)
            return member(found[0], arg[1]) if found else U
        case "null":
            found = world.find(arg, here)
            if not found or (isinstance(found[0], str) and broken(found[0])):
                return U
            return T if found[0] is None else F
        case "present":
            return present(arg, world, here)
        case "first-token":
            return first_token(arg, world, here)
        case "agree" | "differ":
            return compare(name, arg, world, here)
        case "contains":
            return contains(arg, world, here)
        case "changed":
            return changed(arg, world, here)
        case "added" | "removed":
            return moved(name, arg, world, here)
        case _:
            return one(arg, world, here)


def present(ref: str, world: World, here: Any) -> float:
    found = world.find(ref, here)
    if found:
        bad = found[0] is None or (isinstance(found[0], str) and broken(found[0]))
        return U if bad else T
    if not ref.startswith("/"):
        return U
    parent = world.find(ref.rpartition("/")[0], here)
    return F if parent and isinstance(parent[0], dict) else U


def first_token(arg: Any, world: World, here: Any) -> float:
    found = world.find(arg[0], here)
    if not found or not isinstance(found[0], str) or broken(found[0]):
        return U
    text = found[0]
    for char in "\t\n\r\v\f":
        text = text.replace(char, " ")
    words = [word for word in text.split(" ") if word]
    return T if words[:1] == [arg[1]] else F


def compare(name: str, refs: list[str], world: World, here: Any) -> float:
    found = [value for ref in refs for value in world.find(ref, here) if value is not None]
    stamps = [stamp(value) for value in found]
    good = {text for text in stamps if text is not None}
    if name == "agree":
        if len(good) > 1:
            return F
        return T if good and None not in stamps else U
    if len(stamps) < 2 or None in stamps:
        return U
    return T if len(good) == 2 else F


def contains(arg: Any, world: World, here: Any) -> float:
    steps = steps_of(arg[0])
    cut = steps.index("*") if "*" in steps else len(steps)
    try:
        array = walk(here, steps[:cut])
    except Nothing:
        return U
    if not isinstance(array, list):
        return U
    verdicts = [F]
    for element in array:
        try:
            verdicts.append(member(walk(element, steps[cut + 1 :]), [arg[1]]))
        except Nothing:
            verdicts.append(U)
    return max(verdicts)


def changed(arg: Any, world: World, here: Any) -> float:
    before, after = world.find(arg["before"], here), world.find(arg["after"], here)
    if not before or not after or stamp(before[0]) is None or stamp(after[0]) is None:
        return U
    old, new = before[0], after[0]
    if sort(old) == sort(new):
        verdicts = [F if stamp(old) == stamp(new) else T]
    elif {sort(old), sort(new)} == {"int", "float"}:
        verdicts = [T if old != new else U]
    else:
        return U
    if "from" in arg:
        verdicts.append(member(old, arg["from"]))
    if "to" in arg:
        verdicts.append(member(new, arg["to"]))
    return U if U in verdicts else min(verdicts)


def moved(name: str, arg: Any, world: World, here: Any) -> float:
    sides = []
    for key in ("before", "after"):
        found = world.find(arg[key], here)
        if not found:
            return U
        listed = found[0]
        if listed is None:
            listed = []
        elif "separator" in arg:
            if not isinstance(listed, str) or broken(listed):
                return U
            listed = [piece.strip(" ") for piece in listed.split(arg["separator"]) if piece.strip(" ")]
        elif not isinstance(listed, list):
            return U
        stamps = sorted(str(stamp(element)) for element in listed)
        if any(stamp(element) is None for element in listed) or len(set(stamps)) < len(stamps):
            return U
        sides.append(stamps)
    gone = [element for element in sides[0] if element not in sides[1]]
    come = [element for element in sides[1] if element not in sides[0]]
    if len(gone) + len(come) > 1:
        return U
    return T if (come if name == "added" else gone) else F


def one(arg: Any, world: World, here: Any) -> float:
    found = world.find(arg["in"], here)
    if not found or not isinstance(found[0], list):
        return U
    verdicts = [(judge(arg["where"], world, element), element) for element in found[0]]
    yes = [element for verdict, element in verdicts if verdict == T]
    if len(yes) > 1 or any(verdict == U for verdict, _ in verdicts):
        return U
    return judge(arg["then"], world, yes[0]) if yes else F


def reference(spec: Any, document: Any, facts: dict[str, Any], names: dict[str, Any]) -> bool | None:
    return truth(judge(spec, World(document, facts, names), document))
