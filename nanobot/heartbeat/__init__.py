"""The heartbeat: checks HEARTBEAT.md at intervals and runs its open tasks. Without tasks no model is called."""
