"""The message bus between channels and agent: messages (`events`), queues (`queue`) and the durable `journal`."""
