"""Names of tools as every provider takes them: letters, digits, `_` and `-`, at most 64 of them.

Two that would meet in one name are told apart by a hash of what they were; which name a tool gets depends on nothing
but the tools of the config's servers, so that it stays the same from start to start.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

_MOST = 64
_HASHED = 6
_STRANGE = re.compile(r"[^A-Za-z0-9_-]+")


def offered_names(server: str, tools: Iterable[str], taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """The name each tool of a server is offered under: `mcp_<server>_<tool>`. None of them is in `taken`."""
    wanted = {tool: f"mcp_{server}_{tool}" for tool in tools}
    clean = {tool: _STRANGE.sub("_", name) for tool, name in wanted.items()}
    short = Counter(name[:_MOST] for name in clean.values())
    names = {}
    for tool, name in clean.items():
        exact = name == wanted[tool] and len(name) <= _MOST
        alone = len(name) <= _MOST and short[name] == 1
        names[tool] = name if (exact or alone) and name not in taken else _hashed(name, wanted[tool])
    return names


def _hashed(name: str, of: str) -> str:
    digest = hashlib.sha256(of.encode(errors="surrogatepass")).hexdigest()[:_HASHED]
    return f"{name[: _MOST - _HASHED - 1]}_{digest}"
