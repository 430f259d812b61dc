"""Proof that who redeems a code is who asked for it (RFC 7636), and a state that ties an answer to its question."""

import base64
import hashlib
import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pkce:
    """A secret that stays here, and its hash, which goes ahead with the question (method S256)."""

    verifier: str = field(repr=False)
    challenge: str

    @classmethod
    def new(cls) -> "Pkce":
        """A fresh one, of 86 characters; the RFC wants 43 to 128."""
        verifier = secrets.token_urlsafe(64)
        return cls(verifier, challenge_of(verifier))


def challenge_of(verifier: str) -> str:
    """The hash of a verifier, as it is sent."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def new_state() -> str:
    """A word that nobody can guess."""
    return secrets.token_urlsafe(32)
