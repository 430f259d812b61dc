"""Login failures, in addition to the failures of a model call."""

from nanobot.errors import ProviderError
from nanobot.providers.errors import AuthenticationError, ConnectionFailedError, MalformedResponseError


def command_name(provider: str) -> str:
    """The provider's name in commands: `openai-codex`."""
    return provider.replace("_", "-")


class LoginNeededError(AuthenticationError):
    """The account's tokens are missing, expired or insufficient for the request."""

    what = "The sign-in was rejected"

    def advice(self) -> str:
        """The next step. With a 403 the login is valid, but lacks permission."""
        command = f"`nanobot provider login {command_name(self.target.provider)}`"
        if self.status == 403:
            return f"Check what this account may use, or log in to another one with {command}."
        return f"Run {command}."


class AuthorityUnreachableError(ConnectionFailedError):
    """The OAuth server did not respond."""

    what = "The sign-in server cannot be reached"

    next_step = "Check the network, and try again."


class AuthorityAnswerError(MalformedResponseError):
    """The OAuth server's response has no token."""

    what = "The sign-in server sent an unexpected response"

    next_step = "Check the network (a portal, a proxy), and try again."


class LoginFailedError(ProviderError):
    """The login failed; the text says why and what to do."""
