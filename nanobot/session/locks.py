"""The locks of sessions, under the name they had first. What they are: utils/locks.py."""

from nanobot.utils.locks import ProcessLock, locked

__all__ = ["ProcessLock", "locked"]
