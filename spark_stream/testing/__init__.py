"""What tests need, ours and those of users: a simulator of brokers with their disks and clients."""
