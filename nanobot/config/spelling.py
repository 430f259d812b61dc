"""The two styles of a name: snake_case in Python, camelCase in the file."""


def camel(name: str) -> str:
    """The name in camelCase: `e2ee_enabled` is e2eeEnabled. One that is in camelCase already stays."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest) if head else name
