"""Hooks: plugin code and configured programs that watch turns, change what passes through them, or deny it.

`api` is what a plugin implements; `runner` calls hooks with timeouts; `command` runs a program as a hook.
"""

from nanobot.agent.hooks.api import (
    AnswerSeen,
    CallSeen,
    Deny,
    Hook,
    MessageSeen,
    NewArguments,
    NewResult,
    NewText,
    RequestSeen,
    ResultSeen,
    TurnFacts,
    TurnSeen,
)

__all__ = [
    "AnswerSeen",
    "CallSeen",
    "Deny",
    "Hook",
    "MessageSeen",
    "NewArguments",
    "NewResult",
    "NewText",
    "RequestSeen",
    "ResultSeen",
    "TurnFacts",
    "TurnSeen",
]
