"""JSON schemas of arguments, in few words: `takes("path", path=string("File to read"), limit=integer("Lines"))`."""

from typing import Any

Schema = dict[str, Any]


def takes(*required: str, **properties: Schema) -> Schema:
    """The schema of a tool's arguments: those named first must be given."""
    return {"type": "object", "properties": properties, "required": list(required)}


def string(description: str, **more: Any) -> Schema:
    """A text."""
    return {"type": "string", "description": description, **more}


def integer(description: str, **more: Any) -> Schema:
    """A whole number."""
    return {"type": "integer", "description": description, **more}


def number(description: str, **more: Any) -> Schema:
    """A number."""
    return {"type": "number", "description": description, **more}


def boolean(description: str, **more: Any) -> Schema:
    """Yes or no."""
    return {"type": "boolean", "description": description, **more}


def array(description: str, **more: Any) -> Schema:
    """Several texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}
