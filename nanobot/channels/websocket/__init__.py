"""The WebSocket channel: a server for clients of one's own. Frames are documented in docs/formats.md."""

from nanobot.channels.websocket.channel import WebSocketChannel as WebSocketChannel
