"""The config, mapped to the small policies and parts that the lower rooms take.

For `runtime`, which puts them together, and for commands that need one of them alone. Read home first: what all parts
stand on; then walls: what tools may touch; policies: what each may do; toolbox: which there are. sources brings the
tools that come and go, models the models, people says who may what in which chat, skills which there are, jobs opens
the calendar, plugins loads packages, memory keeps what is remembered in order, dreams says when it is tidied, loop says
how much is done at once and what is sent of it, recall what was said before and who may be told. review looks at what
was done. subagents has what is done beside the conversation: subagent_turns, subagent_reports and the surroundings of
both. goals has what a session works at by itself, and goal_turns where that runs; task_goals what subagents have to do
with it; background is all of it, for screens.
"""
