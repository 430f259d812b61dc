"""The slowest checks of the house begin first, so that nobody waits for them alone at the end."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != "test_checks.py")
