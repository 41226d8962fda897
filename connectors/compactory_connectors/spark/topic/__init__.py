"""A topic up to offsets that are captured once, read by the tasks of a job."""
