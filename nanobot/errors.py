"""The base classes of nanobot's errors.

    NanobotError
    |-- ConfigError                 the config cannot be used (exit 78)
    |-- UsageError                  wrong command line arguments (exit 2)
    |-- InstanceLockedError         another process holds the lock (exit 75)
    |-- StorageError                a disk error: full, read-only, no permission
    |-- SecretUnavailableError      a secret reference cannot be resolved
    |-- PluginError                 a "module:Class" name that cannot be loaded
    |-- RequestTooLongError         the request does not fit the model's window; nothing was sent
    `-- ProviderError               a model call failed; subclasses are in providers/errors.py
        `-- BudgetExceededError     the budget is spent; nothing was sent

`str(error)` is for a person: one or two lines that say what to do next.
"""


class NanobotError(Exception):
    """Base class of all expected errors."""

    exit_code = 1
    retryable = True
    """Whether a retry may succeed without any change."""


class ConfigError(NanobotError):
    """The config cannot be used. The file is left as it is."""

    exit_code = 78


class UsageError(NanobotError):
    """A command was called with wrong arguments."""

    exit_code = 2


class InstanceLockedError(NanobotError):
    """Another nanobot process holds the lock."""

    exit_code = 75


class StorageError(NanobotError):
    """Reading or writing a file that must be kept failed."""


class SecretUnavailableError(NanobotError):
    """A secret reference cannot be resolved. The text follows the name of the config key."""


class PluginError(NanobotError):
    """A plugin or class name cannot be loaded."""


class RequestTooLongError(NanobotError):
    """The request alone exceeds the model's window. Nothing was sent."""

    retryable = False

    def __init__(self, tokens: int, room: int) -> None:
        self.tokens = tokens
        self.room = max(room, 0)
        super().__init__(
            f"This is too long for the model: about {tokens:,} tokens, and it has room for {self.room:,}. Send it in "
            "parts or as a file to read from, choose a model with a larger window with `/model`, or set "
            "agents.defaults.contextWindowTokens if its window is larger than nanobot knows."
        )


class ProviderError(NanobotError):
    """A model call failed. Subclasses are in `providers/errors.py`."""


class BudgetExceededError(ProviderError):
    """The call was not made because it could exceed the budget."""

    retryable = False
