"""Topics as producers and readers of whole topics see them: transactions, partitions, all records of a topic."""
