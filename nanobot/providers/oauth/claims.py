"""What a token says about itself. Read, not verified: it came from its issuer over TLS, which will check it itself."""

import base64
import json
from typing import Any


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a JWT (RFC 7519); none where it is no JWT. Never raises."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    payload = parts[1]
    try:
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def inner(claims: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of claims under one name."""
    found = claims.get(name)
    return found if isinstance(found, dict) else {}


def word(claims: dict[str, Any], name: str) -> str:
    """A claim that is a text; empty where it is none."""
    found = claims.get(name)
    return found if isinstance(found, str) else ""
