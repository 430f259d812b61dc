"""How an account fails, beside the failures of a model call."""

from nanobot.errors import ProviderError
from nanobot.providers.errors import AuthenticationError, ConnectionFailedError, MalformedResponseError


def spoken(provider: str) -> str:
    """A provider's name as it is typed in commands: `openai-codex`."""
    return provider.replace("_", "-")


class LoginNeededError(AuthenticationError):
    """The account was not accepted."""

    def advice(self) -> str:
        """The next step. A 403 knows who we are, and does not let us."""
        command = f"`nanobot provider login {spoken(self.target.provider)}`"
        if self.status == 403:
            return f"See what this account may use, or choose another with {command}."
        return f"Run {command}."


class AuthorityUnreachableError(ConnectionFailedError):
    """Who gives the tokens of the account cannot be reached."""

    next_step = "Check the network, and try again."


class AuthorityAnswerError(MalformedResponseError):
    """Who gives the tokens of the account answered something else."""

    next_step = "Check the network (a portal, a proxy), and try again."


class LoginFailedError(ProviderError):
    """Nobody was logged in; the text says why, and what to do."""
