"""Splits a model's Markdown into messages and renders them in a platform's dialect.

Channels call `chunks`; `streaming` closes open markup of a partial answer; `dialects` has the platforms.
"""
