"""Counts tokens as newer models do, to compare our estimates with."""

import importlib.util
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tiktoken

Count = Callable[[str], float]


@cache
def tokenizer() -> Count | None:
    """The o200k tokenizer, a good approximation for most models; None if its table is missing.

    The table is read from LiteLLM's package files, without importing LiteLLM and without network access.
    """
    spec = importlib.util.find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            return _bpe(Path(folder) / "litellm_core_utils" / "tokenizers" / _O200K)
        except (OSError, ValueError, ImportError):
            continue
    return None


_O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""File name of the o200k table in tiktoken's cache format."""
_PIECES = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
"""A simplified split pattern; counts are within 9 % of those with the original one."""
_CHUNK_CHARS = 20_000
"""Texts are counted in chunks: the time for one very long word grows faster than its length."""


def _bpe(table: Path) -> Count:
    with table.open("rb") as lines:
        pairs = (line.split() for line in lines)
        ranks = {b64decode(token): int(rank) for token, rank in pairs}
    encoding = tiktoken.Encoding("o200k", pat_str=_PIECES, mergeable_ranks=ranks, special_tokens={})

    def count(text: str) -> float:
        chunks = (text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS))
        return sum(len(encoding.encode_ordinary(chunk)) for chunk in chunks)

    return count
