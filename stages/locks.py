"""One process at a time: a lock of the operating system, which ends with the process that holds it, however that ends.

On a file system without such locks filelock would mark a held lock by a file, which a killed process leaves behind: its
training could never be resumed. There a lock is an error instead.
"""

from pathlib import Path

from filelock import FileLock


def file_lock(path: Path, *, wait: bool = True) -> FileLock:
    """Held while its `with` block runs. Without `wait`, a lock that is held elsewhere raises `filelock.Timeout`."""
    return FileLock(path, blocking=wait, fallback_to_soft=False)
