"""The OpenAI-compatible HTTP API: `app.endpoints` for the HTTP server, `requests.turn_options` for the agent loop."""
