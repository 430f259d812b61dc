"""Security: file access of tools, the sandbox around commands, secrets and redaction, and provenance.

Policies are frozen dataclasses passed in from above; nothing here reads the config.
"""
