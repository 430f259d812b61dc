"""Full-text search over all stored conversations and memory files, for the tool `session_search` and `/search`.

`index` searches, `query` parses what people search for, and `update` says what is searchable and brings the database
up to date with the files, which it is rebuilt from if it is lost.
"""
