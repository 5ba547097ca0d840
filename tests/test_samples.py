import base64
import json
import time
from typing import Any

import pytest

from gateway.delivery import RawDelivery
from gateway.demo import make_secret
from gateway.environment import data_folder
from gateway.events import read
from gateway.profiles import Source, load_profiles
from gateway.samples import fitting, load_samples, sample_for, shipped, signed_sample
from gateway.verify import KeyRing, Secret, verify

PROFILES = load_profiles(data_folder("profiles"))
SIGNABLE = [name for name, profile in PROFILES.items() if sample_for(profile) is not None]
OWN: dict[str, Any] = {"installation": "987", "project": "654"}


@pytest.mark.parametrize("name", SIGNABLE)
def test_a_sample_passes_the_source_that_it_is_made_for(name: str) -> None:
    """Another tenant than the sample's own: the identity is put in before it is signed."""
    profile, now = PROFILES[name], time.time()
    sample = sample_for(profile)
    assert sample is not None
    shipped = sample.get("identity", {})
    identity = {key: (OWN.get(key, f"our-{key}"),) for key in profile.identity if key in shipped}
    source = Source("ours", profile, identity, frozenset(), None, None)
    secret = make_secret(profile)
    signed = signed_sample(source, secret, now)
    assert signed is not None
    headers = tuple((key.encode(), value.encode()) for key, value in signed[0].items())
    raw = RawDelivery("d", "ours", now, headers, b"", signed[1])
    verified = verify(raw, source, KeyRing((Secret("0", secret),)), now)
    reading = read(verified, source, AnyEvent(), now)
    assert reading.events
    assert reading.rejected == ()


class AnyEvent:
    def __contains__(self, _name: object) -> bool:
        return True


def test_only_the_provider_can_sign_a_token() -> None:
    assert sample_for(PROFILES["forge"]) is None
    source = Source("s", PROFILES["forge"], {}, frozenset(), None, None)
    assert signed_sample(source, b"", 0) is None


def test_the_shipped_sample_stays_as_it_is() -> None:
    sample = next(one for one in load_samples() if one["profile"] == "linear")
    before = json.dumps(sample)
    source = Source("s", PROFILES["linear"], {"organization": ("other",)}, frozenset(), None, None)
    assert fitting(sample, source)["body"]["organizationId"] == "other"
    assert json.dumps(sample) == before


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_has_a_sample(name: str) -> None:
    sample = shipped(PROFILES[name])
    assert sample["profile"] == name
    assert sample["docs"].startswith("https://")
    assert sample["body"]


def test_a_source_with_a_public_key_cannot_be_tested_by_us() -> None:
    source = Source("s", PROFILES["standard-webhooks"], {}, frozenset(), None, None)
    assert signed_sample(source, b"whpk_" + base64.b64encode(b"x" * 32), 0) is None
