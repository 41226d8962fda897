"""``compactory demo``: the whole path on an embedded Postgres and broker, with nothing set up before."""
