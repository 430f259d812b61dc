"""E-mail: a mailbox read by IMAP and answered by SMTP.

`channel` has EmailChannel and knows what was read. `mailbox` is a folder over IMAP, also for the mail tool; `message`
parses a mail, `sender_auth` verifies its sender, `send` builds and sends mails, `settings` checks the config.
"""

from nanobot.channels.email.channel import EmailChannel as EmailChannel
