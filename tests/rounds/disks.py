"""Small disks that can be full: a file system in memory, which only root can make."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILLER: Final = "filler"
CHUNK: Final = b"\0" * 65536


def can_mount() -> bool:
    """Whether this process may make one."""
    return os.geteuid() == 0


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Have a disk of this size at a directory until the block ends; without the right to, a plain directory."""
    place.mkdir(parents=True)
    if not can_mount():
        yield place
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def unmount_left(below: Path) -> None:
    """Remove the disks that a run left which was killed."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = Path(line.split()[1].replace("\\040", " "))
        if place.is_relative_to(below):
            subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with (disk / FILLER).open("ab", buffering=0) as file:
        for chunk in (CHUNK, b"\0" * 4096, b"\0"):
            try:
                while file.write(chunk) == len(chunk):
                    pass
            except OSError:
                continue


def clear(disk: Path) -> None:
    """Give the room back."""
    (disk / FILLER).unlink(missing_ok=True)
