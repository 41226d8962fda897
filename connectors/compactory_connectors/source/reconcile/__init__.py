"""A topic is compared with its table: sweeps, verification, repair, and removals that wait for approval."""
