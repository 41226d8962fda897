"""Files on every file system that Spark reaches, HDFS and S3 among them: what Hadoop's classes say of them.

Their exceptions pass: ``failures`` translates them with those of Spark.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["configuration", "file_system", "java", "names_in", "qualified", "read_bytes"]


def java(spark: SparkSession) -> Any:
    """The JVM's packages."""
    return spark._jvm  # noqa: SLF001  # PySpark has no other way to Hadoop's file systems


def configuration(spark: SparkSession) -> Any:
    """Hadoop's configuration."""
    context: Any = spark._jsc  # noqa: SLF001  # PySpark has no other way to it
    return context.hadoopConfiguration()


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """The file system of a path, and the path as Hadoop has it."""
    place = java(spark).org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(configuration(spark)), place


def qualified(spark: SparkSession, path: str) -> str:
    """A path as those of files are written, with its file system's scheme."""
    system, place = file_system(spark, path)
    return str(system.makeQualified(place).toString())


def names_in(spark: SparkSession, folder: str) -> set[str]:
    """The names of what a folder holds; none where there is no folder."""
    system, place = file_system(spark, folder)
    return {str(item.getPath().getName()) for item in system.listStatus(place)} if system.exists(place) else set()


def read_bytes(spark: SparkSession, stream: Any) -> bytes:
    """The content of a stream of Java; closes it."""
    try:
        return bytes(java(spark).org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
