"""Real brokers that replicate: what holds while they are killed, stopped, paused and cut off."""
