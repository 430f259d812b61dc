"""Finding what was said: an index over all stored conversations and the memory beside them.

Wired by `wiring/recall.py`; the tool `session_search` and the command `/search` ask it. The files stay the truth: the
index holds no text and is made anew from them where it is lost. Reading order: words (text to words, a question to what
the index is asked) -> sources (the files) and rows (what of a file can be found) -> index (the database), with tables
and open_index (what is asked of it and how it learns) -> recall (question to answer).
"""
