"""Who vouches for the sender of a mail: the mailbox's own server, by the Authentication-Results it wrote (RFC 8601).

A From line is only words. The server that took the mail in from outside checks SPF, DKIM and DMARC, and writes what it
found above what came. Headers of that kind further down may be a forger's, so only the topmost counts, and only where
it bears our own server's name. What passed must belong to the domain of the From line; else it proves somebody else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from publicsuffixlist import PublicSuffixList


@dataclass(frozen=True, slots=True)
class SenderVerdict:
    """Whether the sender is proven; if not, why, in words for the log."""

    is_verified: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AuthServer:
    """Who may vouch: servers by their names, or all names in these domains."""

    names: tuple[str, ...]
    writes_many: bool = False
    """Whether it writes one header for each check."""

    def is_named(self, name: str) -> bool:
        """Whether this is the name of such a server."""
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
    """Who checks what comes to this mailbox: the server that the config names, or a well-known service's.

    Of any other mailbox nobody does: a server that writes no Authentication-Results lets in those of a forger, who may
    well guess its name.
    """
    host = imap_host.lower().rstrip(".")
    if authserv_id:
        return AuthServer((authserv_id.lower(),))
    return next((checker for end, checker in _SERVICES if host == end or host.endswith(f".{end}")), AuthServer(()))


def verify_sender(headers: Sequence[tuple[str, str]], domain: str, checker: AuthServer) -> SenderVerdict:
    """Whether a mail with these headers, from the top, comes from this domain."""
    found = [_parsed(value) for name, value in headers if name.lower() == "authentication-results"]
    if not found:
        return SenderVerdict(False, "its server wrote no Authentication-Results")
    name = found[0][0]
    if not checker.is_named(name):
        return SenderVerdict(
            False,
            f"the topmost Authentication-Results are of {name[:80]!r}, which may be anybody; "
            "if that is your mail server, set channels.email.authservId to it",
        )
    results = list(found[0][1])
    if checker.writes_many:
        for other, more in found[1:]:
            if not checker.is_named(other):
                break
            results += more
    if any(one.method == "dmarc" and one.result == "fail" for one in results):
        return SenderVerdict(False, f"DMARC failed for {domain}")
    if any(one.is_passed_by(domain) for one in results):
        return SenderVerdict(True)
    return SenderVerdict(False, f"neither SPF nor DKIM nor DMARC passed for {domain}")


@dataclass(frozen=True, slots=True)
class _Result:
    method: str
    result: str
    properties: dict[str, str]

    def is_passed_by(self, domain: str) -> bool:
        """Whether this shows that the mail is of that domain."""
        if self.result != "pass":
            return False
        told = self.properties
        match self.method:
            case "dmarc":
                return bool(domain) and _domain(told.get("header.from", "")) == _domain(domain)
            case "dkim":
                return any(is_aligned(_domain(told.get(key, "")), _domain(domain)) for key in ("header.d", "header.i"))
            case "spf":
                return is_aligned(_domain(told.get("smtp.mailfrom", "")), _domain(domain))
        return False


def _domain(value: str) -> str:
    name = value.rpartition("@")[2].strip().lower().rstrip(".")
    try:
        return name.encode("idna").decode("ascii") if not name.isascii() else name
    except UnicodeError:
        return ""


def is_aligned(one: str, other: str) -> bool:
    """Whether two domains belong to one organization (DMARC's relaxed alignment, RFC 7489, 3.1)."""
    organization = public_suffixes().privatesuffix(one)
    return organization is not None and organization == public_suffixes().privatesuffix(other)


@cache
def public_suffixes() -> PublicSuffixList:
    """The list that the package has with it. Reading it takes 50 ms, once: not on the event loop."""
    return PublicSuffixList()


def _parsed(header: str) -> tuple[str, list[_Result]]:
    """The name of who checked, and what they found. Never raises."""
    first, *rest = re.sub(r"\s*=\s*", "=", _without_comments(header)).split(";")
    words = first.split()
    if words and "=" in words[0]:  # the name is left out
        return "", [*_results([first, *rest])]
    return (words[0].lower() if words else ""), [*_results(rest)]


def _results(sections: Sequence[str]) -> Iterator[_Result]:
    for section in sections:
        words = section.split()
        if not words or "=" not in words[0]:
            continue
        method, _, result = words[0].partition("=")
        told: dict[str, str] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if equals:
                told.setdefault(name.lower(), value)
        yield _Result(method.partition("/")[0].lower(), result.lower(), told)


def _without_comments(text: str) -> str:
    """The header without comments; what stands in quotes cannot end a part or begin one."""
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
