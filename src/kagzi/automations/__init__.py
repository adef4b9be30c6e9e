"""Automations: producers on schedules publish events to durable topics, consumers act on them."""
