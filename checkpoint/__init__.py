"""What is remembered: room for the copies of a job's state in node memory."""
