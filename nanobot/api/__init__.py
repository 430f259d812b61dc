"""The OpenAI-compatible HTTP API: `app.endpoints` for the HTTP server, `options.turn_options` for the agent loop."""
