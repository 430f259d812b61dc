"""Matrix: rooms and private chats of an account, with end-to-end encryption.

`channel` has MatrixChannel; `client` logs in, converts errors and reads messages.
"""

from nanobot.channels.matrix.channel import MatrixChannel as MatrixChannel
