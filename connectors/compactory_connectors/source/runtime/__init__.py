"""The running source: lease, session, tables, schedule, heartbeat, repair."""
