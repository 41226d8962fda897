"""``compactory snapshot``: directories in a file, from which stores in memory start."""

from __future__ import annotations

from typing import Annotated

from ..context.flags import Flags, argument, command, option
from ..context.session import begin, refuse
from ..views.terminal import print_json, write

__all__ = ["snapshot"]


@command
def snapshot(
    flags: Flags,
    names: Annotated[list[str], argument("DIRECTORY…", "Directories of compactory.toml, or topics.")],
    to: Annotated[
        str, option("--to", "FILE|URL", "Where to write it: a path, or a URL of fsspec; a folder ends with /.")
    ],
) -> None:
    """Read directories to their end and write them to a file for each topic.

    A store that defines the directories alike starts from it and reads only newer records: Memory(bootstrap=…), or
    bootstrap in [store] of compactory.toml.
    """
    from compactory.storage.file_saver import target_path

    from ..context.reading import read, resolve

    configuration = begin(flags)
    directories = resolve(configuration, dict.fromkeys(names))
    first = {directory.topic: directory.name for directory in directories}
    if len({target_path(to, topic) for topic in first}) < len(first):
        refuse(f"--to {to}: {len(first)} topics need a file each; end it with / for a folder")
    with read(configuration, directories) as store:
        found = [{"topic": topic, "written": store.save(name, to, 60.0)} for topic, name in first.items()]
    if flags.json:
        print_json(found)
        return
    for each in found:
        write("{topic}: {written}".format(**each))
