"""Markdown, as models write it, on its way to a platform: split into pieces, written in the platform's dialect.

Channels import it; it knows no platform's SDK, and the parser is imported when the first answer goes out. Read pieces
(what a channel calls) and growing (what may be shown of an answer that still grows). Below: measures (how platforms
count), spans and layout (what hangs together), splitting (where to cut), then reading (the parsed text, with nothing
lost), tables, writing (one walk over it) and dialects (a table of how each platform writes).
"""
