"""Files that somebody else may have put where we look: read whole, bounded, and only where they are plain files.

A checkout or a folder can hold a pipe, a device or a link to one; reading those waits for ever or fills the memory.
"""

import errno
import stat
from pathlib import Path


def read(path: Path, limit_bytes: int) -> bytes:
    """Read a plain file of at most `limit_bytes`. Raises OSError, with what is wrong as its `strerror`."""
    try:
        status = path.stat()
    except ValueError:  # a character that no path can hold
        raise OSError(errno.ENOENT, "No such file or directory", str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        kind = "Is a directory" if stat.S_ISDIR(status.st_mode) else "Is no plain file"
        raise OSError(errno.EINVAL, kind, str(path))
    with path.open("rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"It is larger than {limit_bytes} bytes", str(path))
    return data


def listed(folder: Path, *suffixes: str) -> list[Path]:
    """List what in the folder ends so, sorted. A folder that is not there holds nothing; one that cannot be read raises OSError.

    `Path.glob` answers with nothing for both, and everything that is enrolled would be gone without a word.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffixes))
    except FileNotFoundError:
        return []
