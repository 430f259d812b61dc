"""Finding and redacting secrets: known values, and whatever has the shape or the name of a key.

Errors, logs, traces and displays use it. In doubt a text is redacted: a false match costs a word, a missed one a key.
Where a mistake costs more (a file that the agent reads and writes back) only known values are redacted: `redaction`.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from nanobot.security.encodings import MARK, SecretIndex

LOOK_AHEAD = 320
"""Characters read beyond a cut, so that a secret at the cut is still recognized."""

_SHAPES = (
    (("-----BEGIN",), r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*|\Z)"),
    (("k-", "k_", "i-"), r"\b(?:sk|gsk|xai|pk|rk)[-_][\w*.…-]{6,}"),
    (("gh", "github_pat", "glpat"), r"\b(?:gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,})"),
    (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}"),
    (("xox", "xapp-", "xwfp-"), r"\b(?:xox[a-z][.-]|xapp-|xwfp-)[\w.-]{8,}"),
    (("AIza", "ya29."), r"\b(?:AIza[\w-]{20,}|ya29\.[\w-]{10,})"),
    (("hf_", "npm_", "dop_v1_", "shpat_"), r"\b(?:hf|npm|dop_v1|shpat)_\w{12,}"),
    (("pypi-", "SG."), r"\b(?:pypi-|SG\.)[\w.-]{16,}"),
    (("eyJ",), r"\beyJ[\w-]{8,}(?:\.[\w-]*)*"),
    ((":AA",), r"(?<!\d)\d{6,12}:AA[\w-]{30,}"),  # Telegram's
    (("earer ", "EARER "), r"(?<=[Bb]earer )[\w.~+/=-]{8,}|(?<=BEARER )[\w.~+/=-]{8,}"),
    (("://",), r"(?<=://)(?:[^\s/@:\"']{0,80}:[^\s\"'?]{0,200}?|[^\s/@:\"']{20,200})(?=@[\w\[])"),
)
_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|cookie|authorization|"
    r"(?:api|access|account|encryption|master|private|secret|shared|signing)[_-]?key)"
)
_NAMED_SECRET = (
    # name: value, "name": "value", name=value, --name value; in JSON inside JSON the quotes have backslashes
    rf"(?P<name>{_NAMES}(?:\\*[\"'])?\s*[:=]\s*|--(?:[a-z]+-)*{_NAMES}\s+)(?P<scheme>(?:basic|bearer|token)\s+)?"
    r"(?P<value>\[key\]|\"(?:\\.|[^\"\\])*\"?|\\++\"(?:[^\\]|\\++(?!\"))*+(?:\\+\")?|'[^']*'?|[^\s\"'&,;)}\]\\]+)"
)
_NAME_HINTS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "cookie", "key", "authorization")
_SECRET_NAME = re.compile(
    r"(?:key|token|secret|password|passwd|passphrase|cookie|credentials?|authorization|auth)$|.(?<!^old)pwd$",
    re.IGNORECASE,
)
"""`PWD` and `OLDPWD` are folders."""
_PLACEHOLDER = re.compile(
    r"(?:sk-)?(?:no|not|none|empty|dummy|fake|unused|local|lm|your|my|the|any|some)[-_ ]?(?:api)?[-_ ]?"
    r"(?:key|token|needed|required|key[-_ ](?:here|needed|required)|studio|thing)|placeholder|changeme|(.)\1*",
    re.IGNORECASE,
)
"""Placeholders for a key that a server does not check; redacting them would redact ordinary words."""
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)


@cache
def _shapes() -> list[tuple[str, re.Pattern[str]]]:
    """Each pattern with a hint that is searched first, which is cheap. Compiled on first use: it takes 3 ms."""
    return [(hint, re.compile(pattern, re.DOTALL)) for hints, pattern in _SHAPES for hint in hints]


@cache
def _named_secret() -> re.Pattern[str]:
    return re.compile(_NAMED_SECRET, re.IGNORECASE | re.DOTALL)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace these secrets, and keys of a known shape, whole or as vendors shorten them (`sk-ab***yz`)."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MARK)
    for hint, shape in _shapes():
        if hint in text:
            text = shape.sub(MARK, text)
    return text


def request_secrets(api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    """The secrets of a request: its key, and the headers whose names say that they carry one."""
    return [api_key or "", *(value for name, value in headers.items() if _SECRET_HEADER.search(name))]


def secret_values(settings: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """Values of settings and environment under names of secrets, and passwords in URLs.

    A short word of letters (`none`, `ollama`) means "no key", and is left out: it would be redacted everywhere.
    """
    return {*named_secrets(settings, environ)}


def named_secrets(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """These values, each with its location: `providers.openai.api_key`, `GITHUB_TOKEN`."""
    locations = {value: name for name, value in (*_values_in(settings), *_values_in(environ))}
    return {value: name for value, name in locations.items() if is_worth_hiding(value)}


def is_worth_hiding(value: str) -> bool:
    """Whether a value under the name of a secret is one: not a placeholder, not the path of a file."""
    long_enough = len(value) >= 8 or (len(value) >= 4 and not value.isalpha())
    return long_enough and not _PLACEHOLDER.fullmatch(value) and not _is_path(value)


def _is_path(value: str) -> bool:
    """Whether it is an existing path, as in GOOGLE_APPLICATION_CREDENTIALS."""
    path = os.path.expanduser(value)  # noqa: PTH111 it may be anything
    return os.path.isabs(path) and os.path.exists(path)  # noqa: PTH117, PTH110


class Redactor:
    """Redacts whatever is stored or shown. `known` is called once, on first use."""

    def __init__(self, known: Callable[[], Iterable[str]] = tuple) -> None:
        self._load = known

    def text(self, text: str) -> str:
        """Redact known values, and what looks like or is named as a secret."""
        text = redact(self._known.redact(text))
        lower = text.lower()
        for hint in _NAME_HINTS:
            if hint in lower:
                return _named_secret().sub(_without_value, text)
        return text

    def head(self, text: str, limit: int) -> str:
        """The first `limit` characters, with the number of those left out. The cost does not depend on the length."""
        seen = text[: limit + self.look_ahead]
        shown = self.text(seen)
        if len(text) <= limit:
            return shown
        if len(seen) < len(text):  # the end of what was read may be half a secret
            shown = shown[: -self.look_ahead]
        return f"{shown[:limit]}... [{len(text) - limit} more characters]"

    def value(self, value: Any, limit: int = 1 << 40) -> Any:
        """Redact JSON: values under the name of a secret completely; long texts are cut to their head."""
        if isinstance(value, str):
            return self.head(value, limit)
        if isinstance(value, dict):
            return {
                self.head(str(name), limit): MARK if inner and is_secret_name(str(name)) else self.value(inner, limit)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner, limit) for inner in value]
        return value

    def texts(self, value: Any) -> Any:
        """Redact every text in JSON. Names stay: a schema may describe a token."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self.texts(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.texts(inner) for inner in value]
        return value

    @cached_property
    def look_ahead(self) -> int:
        """Characters that have to be read beyond a cut."""
        return max(LOOK_AHEAD, self._known.longest)

    @cached_property
    def _known(self) -> SecretIndex:
        return SecretIndex(self._load())


def is_secret_name(name: str) -> bool:
    """Whether a name belongs to a secret: `api_key`, `botToken`, `DB_PASSWORD`."""
    return _SECRET_NAME.search(name) is not None


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    opening = re.match(r"\\*[\"']", value)
    quotes = opening[0] if opening else ""
    closing = quotes if len(value) > len(quotes) and value.endswith(quotes) else ""
    return f"{match['name']}{match['scheme'] or ''}{quotes}{MARK}{closing}"


def _values_in(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Names, as dotted paths, with their values."""
    if isinstance(value, str):
        if is_secret_name(name):
            yield name, value
            yield name, value.rpartition(" ")[2]  # the token of `Bearer ...` may be repeated alone
        else:
            yield from ((name, secret) for secret in _named_values(value))
        if "://" in value:
            yield from ((name, match[1]) for match in re.finditer(r"://[^\s/@:]{0,80}:([^\s/]{1,200})@", value))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values_in(inner, name)
        texts = " ".join(inner for inner in value if isinstance(inner, str))
        yield from ((name, secret) for secret in _named_values(texts))  # --token VALUE
    elif isinstance(value, Mapping):
        for inner_name, inner in value.items():
            if inner and not isinstance(inner, int | float):  # most settings are empty, or numbers
                yield from _values_in(inner, f"{name}.{inner_name}" if name else str(inner_name))


def _named_values(text: str) -> Iterator[str]:
    lower = text.lower()
    if any(hint in lower for hint in _NAME_HINTS):
        yield from (match["value"].strip("\"'\\") for match in _named_secret().finditer(text))
