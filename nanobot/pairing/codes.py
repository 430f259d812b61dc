"""Pairing codes: short enough to be read out, too many to be guessed."""

import hmac
import re
import secrets

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without the ambiguous characters 0, O, 1, I and L."""
LENGTH = 8
VALID_S = 600
"""How long a code may be used."""


def new_code() -> str:
    """Return a random code: one of 850,000,000,000."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def normalize_code(text: str) -> str:
    """Remove blanks and dashes from a typed code, and make it upper case."""
    return re.sub(r"[\s-]", "", text).upper()


def codes_equal(code: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(code.encode("utf-8", "backslashreplace"), other.encode("utf-8", "backslashreplace"))
