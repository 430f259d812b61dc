"""The ReAct engine: call the model, run its tool calls, repeat until there is an answer.

The main agent and subagents use `runner`. The engine knows no session, bus or config.
"""
