"""The HTTP formats of model servers: OpenAI chat completions and Responses, as requests, streams and responses."""
