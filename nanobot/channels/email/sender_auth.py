"""Verifies the sender of a mail by the Authentication-Results of the mailbox's own server (RFC 8601).

Anybody can write a From header. The receiving server checks SPF, DKIM and DMARC, and adds its results at the top. Such
headers further down may be forged, so only the topmost counts, and only with our server's name. A passed check must
belong to the domain of the From header; else it proves somebody else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from publicsuffixlist import PublicSuffixList


@dataclass(frozen=True, slots=True)
class SenderVerdict:
    """Whether the sender is verified; if not, the reason for the log."""

    is_verified: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AuthServer:
    """The servers whose results count: by name, or all names in these domains."""

    names: tuple[str, ...]
    writes_many: bool = False
    """Whether it adds one header for each check."""

    def is_named(self, name: str) -> bool:
        """Whether a server of this name is among them."""
        return any(name == known or (known and name.endswith(f".{known}")) for known in self.names)


_SERVICES: tuple[tuple[str, AuthServer], ...] = (
    ("gmail.com", AuthServer(("mx.google.com",))),
    ("googlemail.com", AuthServer(("mx.google.com",))),
    ("office365.com", AuthServer(("",))),  # Exchange Online leaves its name out
    ("outlook.com", AuthServer(("",))),
    ("mail.me.com", AuthServer(("icloud.com",), writes_many=True)),
    ("icloud.com", AuthServer(("icloud.com",), writes_many=True)),
    ("fastmail.com", AuthServer(("messagingengine.com",))),
    ("gmx.net", AuthServer(("gmx.net",))),
    ("gmx.com", AuthServer(("gmx.net",))),
    ("web.de", AuthServer(("web.de",))),
    ("yahoo.com", AuthServer(("yahoo.com",))),
    ("yandex.com", AuthServer(("yandex.net",))),
    ("yandex.ru", AuthServer(("yandex.net",))),
    ("zoho.com", AuthServer(("mx.zohomail.com",))),
)
"""Services that check every mail, and the names their servers sign with, by the end of the IMAP server's name."""


def auth_server(imap_host: str, authserv_id: str = "") -> AuthServer:
    """The servers that check the mails of this mailbox: the configured one, or those of a well-known service.

    None for any other mailbox: a server that adds no Authentication-Results lets forged ones through, and a forger can
    guess its name.
    """
    host = imap_host.lower().rstrip(".")
    if authserv_id:
        return AuthServer((authserv_id.lower(),))
    return next((checker for end, checker in _SERVICES if host == end or host.endswith(f".{end}")), AuthServer(()))


def verify_sender(headers: Sequence[tuple[str, str]], domain: str, checker: AuthServer) -> SenderVerdict:
    """Whether a mail with these headers, from the top, comes from this domain."""
    parsed = [_parse(value) for name, value in headers if name.lower() == "authentication-results"]
    if not parsed:
        return SenderVerdict(False, "its server wrote no Authentication-Results")
    name = parsed[0][0]
    if not checker.is_named(name):
        return SenderVerdict(
            False,
            f"the topmost Authentication-Results are of {name[:80]!r}, which may be anybody; "
            "if that is your mail server, set channels.email.authservId to it",
        )
    results = [*parsed[0][1]]
    if checker.writes_many:
        for other, more in parsed[1:]:
            if not checker.is_named(other):
                break
            results += more
    if any(method == "dmarc" and result == "fail" for method, result, _ in results):
        return SenderVerdict(False, f"DMARC failed for {domain}")
    if any(result == "pass" and _is_about(domain, method, properties) for method, result, properties in results):
        return SenderVerdict(True)
    return SenderVerdict(False, f"neither SPF nor DKIM nor DMARC passed for {domain}")


def _is_about(domain: str, method: str, properties: Mapping[str, str]) -> bool:
    """Whether a check that passed proves this domain."""
    if method == "dmarc":
        return bool(domain) and _domain(properties.get("header.from", "")) == _domain(domain)
    keys = {"dkim": ("header.d", "header.i"), "spf": ("smtp.mailfrom",)}.get(method, ())
    return any(is_aligned(_domain(properties.get(key, "")), _domain(domain)) for key in keys)


def _domain(value: str) -> str:
    name = value.rpartition("@")[2].strip().lower().rstrip(".")
    try:
        return name.encode("idna").decode("ascii") if not name.isascii() else name
    except UnicodeError:
        return ""


def is_aligned(first: str, other: str) -> bool:
    """Whether two domains belong to one organization (DMARC's relaxed alignment, RFC 7489, 3.1)."""
    organization = public_suffixes().privatesuffix(first)
    return organization is not None and organization == public_suffixes().privatesuffix(other)


@cache
def public_suffixes() -> PublicSuffixList:
    """The public suffix list of the package. Blocking: the first call takes 50 ms."""
    return PublicSuffixList()


def _parse(header: str) -> tuple[str, list[tuple[str, str, dict[str, str]]]]:
    """The server name, and of each check its method, result and properties. Never raises."""
    head, *sections = re.sub(r"\s*=\s*", "=", _without_comments(header)).split(";")
    name = (head.split() or [""])[0].lower()
    if "=" in name:  # no server name
        name, sections = "", [head, *sections]
    results = []
    for first, *rest in filter(None, map(str.split, sections)):
        method, equals, result = first.lower().partition("=")
        # of several properties of a name, the first counts
        properties = {key.lower(): value for key, _, value in (word.partition("=") for word in reversed(rest))}
        if equals:
            results.append((method.partition("/")[0], result, properties))
    return name, results


def _without_comments(text: str) -> str:
    """The header without comments. Quoted text cannot start or end a part."""
    out: list[str] = []
    depth, quoted, characters = 0, False, iter(text)
    for char in characters:
        if char == "\\" and (depth or quoted):
            next(characters, "")
            out += ["_"] if quoted and not depth else []
        elif quoted:
            quoted = char != '"'
            out += [char if char.isalnum() or char in "@.-_+" else "_"] if quoted else []
        elif depth:
            depth += (char == "(") - (char == ")")
        elif char == '"':
            quoted = True
        elif char == "(":
            depth = 1
            out.append(" ")
        else:
            out.append(char)
    return "".join(out)
