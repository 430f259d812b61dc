"""The code a stranger is given: short enough to be read out, too many of them to be guessed."""

import hmac
import re
import secrets

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""No 0 and O, no 1, I and L: read out or copied by hand, a code stays what it is."""
LENGTH = 8
VALID_S = 600
"""How long a code may be used."""


def new_code() -> str:
    """A code nobody can foresee: one of 850,000,000,000."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def as_typed(text: str) -> str:
    """A code as a person typed it, in the one spelling: any case, blanks and dashes between."""
    return re.sub(r"[\s-]", "", text).upper()


def same_code(one: str, other: str) -> bool:
    """Whether two codes are the same; it takes as long wherever they differ."""
    return hmac.compare_digest(one.encode("utf-8", "backslashreplace"), other.encode("utf-8", "backslashreplace"))
