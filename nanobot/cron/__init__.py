"""Cron: jobs that run at their time, once, and what became of each.

It knows neither agent nor channels: what a job does is handed in, and so is the check of where it may post. Read types
(a job), zones (wall clocks and instants), schedule (when), judging (what a due instant comes to), store (jobs.json),
history (what became of each instant), leases (who runs it), rounds (all of that for every job), keeper (book and disk),
edits (what people do with jobs), service (the clockwork). Beside it stand wording (schedules in and out of people's
words), notify (what is told, and when), targets (where a job may post), desk (what the `cron` tool asks of us) and
rehearsal (what would fire).
"""
