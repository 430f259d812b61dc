"""The tree of our errors. Each tells the person who meets it what to do next.

    NanobotError
    |-- ConfigError                 the config cannot be used (exit 78)
    |-- UsageError                  a command was called wrongly (exit 2)
    |-- InstanceLockedError         another process has what only one may have (exit 75)
    |-- StorageError                the disk refused: full, read-only, no permission
    |-- SecretUnavailableError      what a config points at tells no secret
    |-- PluginError                 a "module:Class" name that cannot be loaded
    |-- RequestTooLongError         what is asked does not fit the model's window; nothing was sent
    `-- ProviderError               a model gave no answer; its kinds live in providers/errors.py
        `-- BudgetExceededError     it was not asked: what may be spent is spent

Errors are made where they are understood. `str(error)` is what a person reads: one or two lines, the next step in it.
"""


class NanobotError(Exception):
    """Anything we raise on purpose."""

    exit_code = 1


class ConfigError(NanobotError):
    """The config cannot be used. The command stops; the file is neither replaced nor rewritten."""

    exit_code = 78


class UsageError(NanobotError):
    """A command was called with words that do not fit."""

    exit_code = 2


class InstanceLockedError(NanobotError):
    """Another process of ours has it already."""

    exit_code = 75


class StorageError(NanobotError):
    """The disk did not take what had to be kept."""


class SecretUnavailableError(NanobotError):
    """A reference leads to no secret. The text goes behind the name of its key: what it needs, and what to do."""


class PluginError(NanobotError):
    """A name at the door leads nowhere."""


class RequestTooLongError(NanobotError):
    """What is asked is longer than the model can read, whatever else is left out. No model was asked."""

    def __init__(self, tokens: int, room: int) -> None:
        self.tokens = tokens
        self.room = max(room, 0)
        super().__init__(
            f"This is too long for the model: about {tokens:,} tokens, and it has room for {self.room:,}. Send it in "
            "parts or as a file to read from, choose a model with a larger window with `/model`, or set "
            "agents.defaults.contextWindowTokens if its window is larger than nanobot knows."
        )


class ProviderError(NanobotError):
    """A model gave no answer. `providers/errors.py` has the kinds."""


class BudgetExceededError(ProviderError):
    """The model was not asked, since the call could cost more than the owner allows."""
