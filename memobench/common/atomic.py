"""Files that are written whole or not at all, whenever their writer is killed. Imports no JAX.

A file is written under a temporary name beside its own and then named in one step. What a killed
writer leaves is hidden and ends in `.tmp`.
"""

import contextlib
import errno
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def create(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file to write; after the block it is at `path`, and stays there if the power fails.

    Raises:
      FileExistsError: the name is taken; what is there stays as it is.
    """
    with _temporary_file(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        _link(file.name, path)
    _sync_folder(path.parent)


@contextlib.contextmanager
def replace(path: pathlib.Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write; after the block it is at `path`, in place of what was there.

    Args:
      path: of the file.
      durable: whether to wait for the disk, so that a power failure leaves the old or the new file.
    """
    with _temporary_file(path) as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        os.replace(file.name, path)
    if durable:
        _sync_folder(path.parent)


def replace_text(path: pathlib.Path, text: str) -> None:
    """Writes a text in UTF-8 in place of what was at `path`."""
    with replace(path) as file:
        file.write(text.encode())


def leftovers(folder: pathlib.Path, name: str = "") -> list[pathlib.Path]:
    """Temporary files in a folder, or those of the file of that name alone."""
    return sorted(folder.glob(f".{name}*.tmp"))


def remove(path: pathlib.Path) -> None:
    """Removes a file, and what killed writers of it have left."""
    for each in (path, *leftovers(path.parent, path.name)):
        # Without a folder that can be written there is nothing to remove.
        with contextlib.suppress(OSError):
            each.unlink()


@contextlib.contextmanager
def _temporary_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
    finally:
        temporary.unlink(missing_ok=True)


# Errors of systems that cannot open a folder or wait for one: shared folders of virtual machines,
# some network and FUSE file systems, Windows.
_NO_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.EISDIR, errno.EACCES}


def _sync_folder(folder: pathlib.Path) -> None:
    """Waits until the disk has the names in a folder, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _link(source: str, target: pathlib.Path) -> None:
    """Gives a file its name unless that is taken (FileExistsError)."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # Some network and removable file systems have no hard links.
        if target.exists():
            raise FileExistsError(target) from None
        os.rename(source, target)
