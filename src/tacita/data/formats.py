"""Strict readers of IDX, of CIFAR's batches and of NPZ."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

_MAX_ARRAY = 1 << 32  # bytes; an archive that claims more is refused before anything is unpacked


def parse_idx(content: bytes, *, name: str) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes.

    Raises:
        ValueError: If the magic number, the type or the size is not exactly right.
    """
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(f"{name} is not an IDX file: it must start with two zero bytes.")
    kind, dimensions = content[2], content[3]
    if kind != 0x08 or not 1 <= dimensions <= 4:
        raise ValueError(f"{name} must be IDX of unsigned bytes (type 0x08) in 1 to 4 dimensions.")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{name} ends inside its IDX header.")
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{name} does not hold exactly the bytes its IDX header declares.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def parse_cifar(content: bytes, *, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images (n, 3, 32, 32) and labels of a CIFAR-10 batch: a label byte, then red, green and blue planes.

    Raises:
        ValueError: If it holds no whole number of records, or a label above 9.
    """
    if not content or len(content) % 3073:
        raise ValueError(f"{name} does not hold whole records of 3,073 bytes.")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    if records[:, 0].max() > 9:
        raise ValueError(f"{name} has a label above 9.")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_npz(source: Path | IO[bytes], wanted: Iterable[str], *, name: str) -> dict[str, NDArray[Any]]:
    """Return the wanted arrays of an NPZ archive. Nothing is unpickled.

    Args:
        source: The file, or its path.
        wanted: The names of the arrays.
        name: What messages call the file.

    Raises:
        ValueError: If the archive is damaged, or an array is missing, too large or of Python objects.
        OSError: If the file cannot be read.
    """
    try:
        with np.load(source, allow_pickle=False) as archive, warnings.catch_warnings():
            warnings.simplefilter("error")
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
            for key in wanted:
                if key not in sizes:
                    raise _Refused(f"{name}: array {key!r} is missing.")
                if sizes[key] > _MAX_ARRAY:
                    raise _Refused(f"{name}: array {key!r} is larger than {_MAX_ARRAY >> 30} GiB; split the file.")
            return {key: archive[key] for key in wanted}
    except (_Refused, OSError):
        raise
    except Exception:  # a damaged archive raises any of a dozen kinds, some quoting its bytes
        raise ValueError(
            f"{name} is not an NPZ archive of numbers and text that can be read; write it with numpy.savez. "
            "Python objects are never unpickled."
        ) from None


class _Refused(ValueError):
    """Our own wording, to be passed on."""
