"""Access to models. The agent imports `base` and `errors`; `factory` builds a provider from the config.

`endpoint` is one model server, `wire` speaks chat completions and Responses, `resilience` retries and falls back,
`metering` counts and limits, `accounts` handles OAuth.
"""
