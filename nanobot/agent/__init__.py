"""The agent: a message in, a turn, a reply out. It knows no channel and no screen; they meet at the bus.

Runtime and what stands above it may import it. Reading order: turn (plain data) and vitals (what /status tells) ->
run/runner (model and tools until an answer) -> scope (whose memory may be told), context, memory, skills (the prompt),
on the room skill (one of them) -> session_window (what a model is shown of a session) and context_report (the same for
a person) -> pipeline (one turn, phase by phase) -> slash_commands, with desk (what commands work with) -> answering
(who may answer what a turn asks) and answers (in which words) -> loop, earlier (what a crash left), intake and lanes (a
message finds its lane) -> delivery -> trace (what happened, kept and run again) -> subagent, with subagent_ports,
courses, tasks, task_words and roles (work beside the conversation), of which review and planning ask -> goals (work
over many turns), with teammates, letters and team_words (subagents of one goal tell each other); and beside the turns
tidying (when), idle -> consolidation -> save_memory and handover (old messages go into memory) -> remembering (what of
it is kept), facts (what a memory says), memory_book (every version of it), memory_merge (edits that leave the rest
alone) -> dream (the pass that tidies it), with tidy_memory (what is asked), dream_changes and dream_log (on the disk),
dream_words -> memory_editing and memory_words (a memory in a person's hands), mistakes (what failed in a turn) ->
lessons (what of it is remembered), and hooks -> hook_wall, command_hook (what plugins and programs see, change and
deny).
"""
