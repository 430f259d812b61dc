"""Full-text search over all stored conversations and memory files, for the tool `session_search` and `/search`.

`index` searches and owns the database, which is rebuilt from the files if it is lost; `tables` is its content,
`sources` and `rows` say what is searchable, and `query` parses what people search for.
"""
