"""What tests need: a disk that fails, a log in memory; soon whole brokers under a simulated clock.

``simulation``  stands in for the world below and around a broker, from one seed
"""
