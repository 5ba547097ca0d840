"""A secret sent as it is: a header's whole value, or a Basic credential. It proves the sender, not the body.

GitLab: https://docs.gitlab.com/user/project/integrations/webhooks/#custom-headers (X-Gitlab-Token)
Azure DevOps: https://learn.microsoft.com/azure/devops/service-hooks/services/webhooks
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import SharedSecretProof


def verify(raw: RawDelivery, proof: SharedSecretProof, secrets: Sequence[tuple[str, bytes]]) -> str:
    """Return the label of the first secret that the header equals; raises Rejection `signature`."""
    sent = raw.header(proof.header)
    if sent is None:
        raise Rejection("signature", 401)
    matched = [label for label, secret in secrets if equal(sent, expected(secret, proof))]
    if not matched:
        raise Rejection("signature", 401)
    return matched[0]


def expected(secret: bytes, proof: SharedSecretProof) -> bytes:
    """Return the header's whole value for a secret; a Basic credential (RFC 7617) has one canonical spelling."""
    return b"Basic " + base64.b64encode(secret) if proof.form == "basic" else secret


def equal(sent: bytes, wanted: bytes) -> bool:
    """Compare in constant time, without telling the secret's length either: digests are compared."""
    return hmac.compare_digest(hashlib.sha256(sent).digest(), hashlib.sha256(wanted).digest())
