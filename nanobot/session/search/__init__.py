"""Full-text search over all stored conversations and memory files, for the tool `session_search` and `/search`.

`index` searches, `update` brings the database up to date with the files, which it is rebuilt from if it is lost.
`sources` says what is searchable, and `query` parses what people search for.
"""
