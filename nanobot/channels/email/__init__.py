"""E-mail: a mailbox read by IMAP and answered by SMTP.

Reading order: channel -> settings -> login -> inbox (which mails) -> imap (the wire) -> incoming (what one says),
headers, html_text, quotes -> loops and proof (who gets no answer, who is believed) -> outgoing -> smtp; book remembers.
Beside the channel, reading: the mailbox as a tool looks into it.
"""

from nanobot.channels.email.channel import EmailChannel as EmailChannel
