"""The files shipped with the code: inside the package when installed, beside it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def templates_dir() -> Path:
    """The templates that onboarding copies into a workspace."""
    return _resource("templates")


def skills_dir() -> Path:
    return _resource("skills")


def _resource(name: str) -> Path:
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
