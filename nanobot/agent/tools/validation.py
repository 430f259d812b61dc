"""Are a model's arguments what the tool's JSON schema asks for? If not, say it so that the model can mend it."""

from typing import Any


def problems_with(params: Any, schema: dict[str, Any]) -> list[str]:
    """Each problem in a sentence; empty where the arguments fit. Never raises, whatever the schema."""
