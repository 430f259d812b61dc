"""Claims: does an answer say that something was done which no tool did?

The runner asks `judge` about each final answer. It reads the answer by `english` or `chinese`: what a claim looks like
in that language, in the shapes that `words` has for any language. A language more is one more file beside them.
"""
