"""Cron: jobs that each run once when due, and the history of their runs. `service.CronService` is the entry point.

Knows neither agent nor channels: what runs a job and what checks its target are passed in.
"""
