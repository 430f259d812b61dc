"""A run: model and tools until an answer. It knows no session, no bus and no config: main agent, subagents and tests
all use this one engine. Read runner, then tool_calls, then window."""
