"""What the three services have in common at their rim: configuration, logs, errors, sockets,
health, drain.
"""
