"""JSON as no platform documents it."""

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


@cache
def odd_objects(names: str, *values: object) -> SearchStrategy[dict[str, Any]]:
    """Objects with these names, at any depth, and anything behind them; these values more often."""
    keys = st.sampled_from(names.split())
    leaves: SearchStrategy[object] = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    leaves = leaves | st.sampled_from(values) if values else leaves
    odd = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=12,
    )
    return st.dictionaries(keys, odd, max_size=10)
