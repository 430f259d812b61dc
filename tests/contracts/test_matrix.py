"""The page about channels shows what the suite holds them to."""

from nanobot.testing.channels import WITHOUT
from tests.contracts.matrix import PAGE, with_table
from tests.fakes.platforms import PLATFORMS, platform_class


def test_the_page_shows_the_matrix_as_it_is():
    page = PAGE.read_text(encoding="utf-8")

    assert page == with_table(page), "run `python -m tests.contracts.matrix`"


def test_what_a_platform_says_of_itself_is_known():
    for name in PLATFORMS:
        platform = platform_class(name)

        assert platform.name == name
        assert all(hasattr(platform, ability) for ability in WITHOUT)
