"""A run: model and tools until an answer. Main agent, subagents and tests all use this one engine.

The pipeline and runtime may import it; it knows no session, no bus and no config. Read spec (what goes in, what comes
out), then runner (with rows, speech and cut), then tool_calls (with hooks, and hooked for those of plugins); then what
the owner is asked before a call: approval > (outside, addresses, questions, wording), what is written down of files
and skills: filing, skill_use, and whose words go on to a subagent: handing_on; then how a request comes to fit:
requests > fit > sheet > (window, shrink), and allowance; then the guards: loop_guard, and the room claims.
"""
