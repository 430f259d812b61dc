"""The tests. This is imported before their `conftest`, and so before anything of nanobot."""

import os
import sys

sys.dont_write_bytecode = False  # else each worker compiles nanobot and rewrites the asserts of all tests for itself
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the children too
