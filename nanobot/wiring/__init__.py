"""The config, mapped to the small policies and parts that the lower rooms take.

For `runtime`, which puts them together, and for commands that need one of them alone. Read policies first: what tools
may do. sources brings the tools that come and go, models the models, people says who may what in which chat, jobs opens
the calendar.
"""
