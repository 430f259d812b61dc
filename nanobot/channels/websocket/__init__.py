"""The WebSocket channel: a server for the user's own clients. Frames are documented in docs/formats.md."""

from nanobot.channels.websocket.channel import WebSocketChannel as WebSocketChannel
