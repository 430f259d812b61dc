"""E-mail: a mailbox read by IMAP and answered by SMTP.

`channel` has EmailChannel. `receive` reads the mailbox, `message` parses a mail, `sender_auth` verifies its sender,
`send` builds and sends mails, `settings` checks the config, and `reading` serves the mail tool.
"""

from nanobot.channels.email.channel import EmailChannel as EmailChannel
