"""What is read of which table, in what order, to which topic: plans and their warnings."""
