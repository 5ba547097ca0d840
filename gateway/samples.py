"""The shipped sample deliveries, made to fit a source and signed with its secret: a first test without the provider."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from gateway.environment import data_folder
from gateway.pointers import parse, resolve
from gateway.profiles import ClientStateProof, Ed25519Proof, JwtProof, Profile, Source
from gateway.signing import prepare, sign


def load_samples() -> list[dict[str, Any]]:
    """The shipped sample deliveries, one file a provider."""
    return [json.loads(path.read_text()) for path in sorted((data_folder("subscriptions") / "samples").glob("*.json"))]


def sample_for(profile: Profile) -> dict[str, Any] | None:
    """The sample of a profile, None where none ships or only the provider can sign it."""
    return None if isinstance(profile.proof, JwtProof | Ed25519Proof) else shipped(profile)


def shipped(profile: Profile) -> dict[str, Any]:
    """The sample of a profile, whoever can sign it: a connector's, else the profile's own."""
    own = data_folder("profiles") / "samples" / f"{profile.name}.json"
    found = next((sample for sample in load_samples() if sample["profile"] == profile.name), None)
    return found or dict(json.loads(own.read_text()))


def fitting(sample: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The sample with the source's own identity at the places where the profile reads it, so that it is not refused for it."""
    fitted = copy.deepcopy(dict(sample))
    proof, body = source.profile.proof, fitted["body"]
    items = body[proof.items.removeprefix("/")] if isinstance(proof, ClientStateProof) else [body]
    for name, pointer in source.profile.identity.items():
        values = source.identity.get(name)
        if values and pointer.startswith("/"):
            for item in items:
                _put(item, pointer, values[0])
    if isinstance(proof, JwtProof) and "claims" in fitted:
        _claim(fitted["claims"], proof, source)
    return fitted


def _claim(claims: dict[str, Any], proof: JwtProof, source: Source) -> None:
    """Put the source's identity into a token's claims, at each place that the profile compares."""
    for name, pointer in source.profile.identity.items():
        fact, values = pointer.removeprefix("@"), source.identity.get(name)
        if not values:
            continue
        if fact in proof.facts:
            where = proof.facts[fact]
            for place in {where, *(other for pair in proof.same if where in pair for other in pair)}:
                _put(claims, place, values[0])
        elif fact in proof.picked:
            pick = proof.picked[fact]
            for item in resolve(claims, parse(pick.among)):
                if all(resolve(item, parse(key)) == value for key, value in pick.where.items()):
                    _put(item, pick.take, values[0])


def _put(document: Any, pointer: str, value: str) -> None:
    """Replace what stands at a pointer, keeping its type; a member that is not there stays so."""
    *path, last = [int(t) if t.isdigit() else t for t in pointer.removeprefix("/").split("/")]
    for token in path:
        try:
            document = document[token]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(document, dict) and last in document:
        document[last] = int(value) if isinstance(document[last], int) and value.isdecimal() else value


def signed_sample(source: Source, secret: bytes, now: float) -> tuple[dict[str, str], bytes] | None:
    """Headers and body of a sample as its provider would send it to this source, None where that cannot be done."""
    sample = sample_for(source.profile)
    if sample is None:
        return None
    headers, body = prepare(source.profile, fitting(sample, source), secret, now)
    try:
        return sign(source.profile, headers, body, secret), body
    except TypeError:  # this source's secret is a public key
        return None
