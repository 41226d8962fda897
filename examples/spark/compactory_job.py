"""What ``spark-submit`` is given: every Spark command of ``compactory`` with its arguments.

spark-submit --master yarn examples/spark/compactory_job.py spark export terminal_acquirer --to s3a://lake/terminals
"""

from compactory_cli.entry import run

if __name__ == "__main__":
    run()
