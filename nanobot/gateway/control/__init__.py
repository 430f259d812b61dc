"""The gateway's local socket, through which commands and terminal chats talk to the running gateway."""
