"""Secrets out of texts: the values we know, and what has the shape or the name of a key wherever it stands.

Errors, traces and what is shown of them go through here, so that there is one truth about what a secret looks like.
What is taken for one by mistake costs a word; what is missed costs a key. So in doubt it goes. Where a mistake costs
more (a file that the agent reads and writes back), only the values we know are taken out: `vault` has them.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from nanobot.security.spellings import MARK, KnownValues

__all__ = ["MARK", "Redactor", "is_telling", "named_secrets", "redact", "secrets_in", "secrets_of"]

LOOK_AHEAD = 320
"""How far behind the end of what is kept of a text we look, so that no secret is cut in half and not known again."""

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
_NAMED = (
    # name: value, "name": "value", name=value, --name value; in JSON inside JSON the quotes have backslashes
    rf"(?P<name>{_NAMES}(?:\\*[\"'])?\s*[:=]\s*|--(?:[a-z]+-)*{_NAMES}\s+)(?P<scheme>(?:basic|bearer|token)\s+)?"
    r"(?P<value>\[key\]|\"(?:\\.|[^\"\\])*\"?|\\+\"(?:(?!\\+\").)*(?:\\+\")?|'[^']*'?|[^\s\"'&,;)}\]\\]+)"
)
_NAME_HINTS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "cookie", "key", "authorization")
_TELLING_NAME = re.compile(
    r"(?:key|token|secret|password|passwd|passphrase|cookie|credentials?|authorization|auth)$|.(?<!^old)pwd$",
    re.IGNORECASE,
)
"""`PWD` and `OLDPWD` are folders."""
_STANDS_FOR_NONE = re.compile(
    r"(?:sk-)?(?:no|not|none|empty|dummy|fake|unused|local|lm|your|my|the|any|some)[-_ ]?(?:api)?[-_ ]?"
    r"(?:key|token|needed|required|key[-_ ](?:here|needed|required)|studio|thing)|placeholder|changeme|(.)\1*",
    re.IGNORECASE,
)
"""What people write where a server wants a key and takes any: to hide it everywhere would hide words, not keys."""
_TELLING_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)


@cache
def _shapes() -> list[tuple[str, re.Pattern[str]]]:
    """What to look for first, since that costs nothing, and then in full. Compiled when first needed: it takes 3 ms."""
    return [(hint, re.compile(pattern, re.DOTALL)) for hints, pattern in _SHAPES for hint in hints]


@cache
def _named() -> re.Pattern[str]:
    return re.compile(_NAMED, re.IGNORECASE | re.DOTALL)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without keys of a known shape, whole or as vendors shorten them
    (`sk-ab***yz`).
    """
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MARK)
    for hint, shape in _shapes():
        if hint in text:
            text = shape.sub(MARK, text)
    return text


def secrets_in(api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    """What must not be told of a request: its key, and the headers whose names say that they carry one."""
    return [api_key or "", *(value for name, value in headers.items() if _TELLING_HEADER.search(name))]


def secrets_of(settings: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """The values that settings and environment hold under names that tell a secret, and passwords in addresses.

    A short word of letters alone (`none`, `ollama`) stands for "no key", and would be missed everywhere.
    """
    return {*named_secrets(settings, environ)}


def named_secrets(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """These values, each with the name of where it stands: `providers.openai.api_key`, `GITHUB_TOKEN`."""
    found = {value: name for name, value in (*_values_in(settings), *_values_in(environ))}
    return {value: name for value, name in found.items() if is_worth_hiding(value)}


def is_worth_hiding(value: str) -> bool:
    """Whether a value under a telling name is a secret at all: no word for "none needed", and no path to a file."""
    long_enough = len(value) >= 8 or (len(value) >= 4 and not value.isalpha())
    return long_enough and not _STANDS_FOR_NONE.fullmatch(value) and not _is_place(value)


def _is_place(value: str) -> bool:
    """Whether it is where a secret is kept: GOOGLE_APPLICATION_CREDENTIALS and its like name a file."""
    place = os.path.expanduser(value)  # noqa: PTH111 it may be anything
    return os.path.isabs(place) and os.path.exists(place)  # noqa: PTH117, PTH110


class Redactor:
    """Takes secrets out of whatever is kept or shown. `known` is asked once, when first needed."""

    def __init__(self, known: Callable[[], Iterable[str]] = tuple) -> None:
        self._ask = known

    def text(self, text: str) -> str:
        """The text without what is known, looks or is called like a secret."""
        text = redact(self._known.out_of(text))
        lower = text.lower()
        for hint in _NAME_HINTS:
            if hint in lower:
                return _named().sub(_without_value, text)
        return text

    def head(self, text: str, limit: int) -> str:
        """The first characters, with a word on how many follow. Costs the same however long the text is."""
        seen = text[: limit + self.look_ahead]
        shown = self.text(seen)
        if len(text) <= limit:
            return shown
        if len(seen) < len(text):  # at the end of what was seen stands what may be half a secret
            shown = shown[: -self.look_ahead]
        return f"{shown[:limit]}... [{len(text) - limit} more characters]"

    def value(self, value: Any, limit: int = 1 << 40) -> Any:
        """JSON without secrets: under a telling name nothing is left, longer texts keep their head."""
        if isinstance(value, str):
            return self.head(value, limit)
        if isinstance(value, dict):
            return {
                self.head(str(name), limit): MARK if inner and is_telling(str(name)) else self.value(inner, limit)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner, limit) for inner in value]
        return value

    def texts(self, value: Any) -> Any:
        """JSON with every text in it cleaned. Names are left in peace: a schema may well describe a token."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self.texts(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.texts(inner) for inner in value]
        return value

    @cached_property
    def look_ahead(self) -> int:
        """How much more than is kept must be looked at."""
        return max(LOOK_AHEAD, self._known.longest)

    @cached_property
    def _known(self) -> KnownValues:
        return KnownValues(self._ask())


def is_telling(name: str) -> bool:
    """Whether a name says that its value is a secret: `api_key`, `botToken`, `DB_PASSWORD`."""
    return _TELLING_NAME.search(name) is not None


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    opening = re.match(r"\\*[\"']", value)
    quotes = opening[0] if opening else ""
    closing = quotes if len(value) > len(quotes) and value.endswith(quotes) else ""
    return f"{match['name']}{match['scheme'] or ''}{quotes}{MARK}{closing}"


def _values_in(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, the name as a path with dots."""
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _values_in(inner, f"{name}.{inner_name}" if name else str(inner_name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values_in(inner, name)
        texts = " ".join(inner for inner in value if isinstance(inner, str))
        yield from ((name, found) for found in _named_values(texts))  # --token VALUE
    elif isinstance(value, str):
        if is_telling(name):
            yield name, value
            yield name, value.rpartition(" ")[2]  # `Bearer ...` may be repeated without its first word
        else:
            yield from ((name, found) for found in _named_values(value))
        if "://" in value:
            yield from ((name, match[1]) for match in re.finditer(r"://[^\s/@:]{0,80}:([^\s/]{1,200})@", value))


def _named_values(text: str) -> Iterator[str]:
    lower = text.lower()
    if any(hint in lower for hint in _NAME_HINTS):
        yield from (match["value"].strip("\"'\\") for match in _named().finditer(text))
