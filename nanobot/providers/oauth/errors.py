"""How an account fails, beside the failures of a model call."""

from nanobot.errors import ProviderError
from nanobot.providers.errors import AuthenticationError


def spoken(provider: str) -> str:
    """A provider's name as it is typed in commands: `openai-codex`."""
    return provider.replace("_", "-")


class LoginNeededError(AuthenticationError):
    """The account was not accepted."""

    def advice(self) -> str:
        """The next step."""
        return f"Run `nanobot provider login {spoken(self.target.provider)}`."


class LoginFailedError(ProviderError):
    """Nobody was logged in; the text says why, and what to do."""
