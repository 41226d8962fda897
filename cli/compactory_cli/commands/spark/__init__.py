"""``compactory spark``: loads and exports by Spark."""
