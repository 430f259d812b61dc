"""Splits a model's Markdown into messages and renders them in a platform's dialect.

Channels call `split_message` with a dialect of `dialects`. `parse` makes rich text of Markdown, `split` cuts it,
`write` writes each part.
"""

from nanobot.markdown.dialects import Dialect
from nanobot.markdown.split import split_message, well_formed
from nanobot.markdown.write import Chunk, Entity

__all__ = ["Chunk", "Dialect", "Entity", "split_message", "well_formed"]
