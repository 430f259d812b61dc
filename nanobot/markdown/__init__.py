"""Splits a model's Markdown into messages and renders them in a platform's dialect.

Channels call `chunks.split_message` with a dialect of `dialects`; `split.close_open_markup` prepares a partial answer.
"""
