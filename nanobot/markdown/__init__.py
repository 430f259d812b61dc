"""Splits a model's Markdown into messages and renders them in a platform's dialect.

Channels call `split_message` with a dialect of `dialects`.
"""

from nanobot.markdown.chunks import Chunk, split_message, well_formed

__all__ = ["Chunk", "split_message", "well_formed"]
