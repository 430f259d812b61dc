"""E-mail: a mailbox read by IMAP and answered by SMTP.

`channel` has EmailChannel. Receiving: `login` and `imap` open the mailbox, `inbox` finds new mails, `incoming` parses
one (with `headers`, `html_text`, `quotes`), `sender_auth` verifies its sender. Sending: `outgoing` builds mails, `smtp`
sends them. `store` has the position and the threads, `settings` checks the config; `reading` serves the mail tool.
"""

from nanobot.channels.email.channel import EmailChannel as EmailChannel
