import pytest

pytest.register_assert_rewrite("nanobot.testing")  # its asserts say their values, as those of tests do
