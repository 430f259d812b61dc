"""Full-text search over all stored conversations and memory files, for the tool `session_search` and `/search`.

`recall` searches, `index` and `open_index` keep the database, `query` tokenizes, `sources` and `rows` tell what is
searchable. The index stores no text and is rebuilt from the files if it is lost.
"""
