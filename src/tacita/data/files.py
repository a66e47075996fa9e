"""Locate, verify and, after announcing it, download the files of the named sets."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

OFFICIAL = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "adult": "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
    "abalone": "https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/",
    "olivetti": "https://ndownloader.figshare.com/files/",
    "retinamnist": "https://zenodo.org/records/10519652/files/",
}
_REMOTE = {  # where the address does not end in the file's name
    "retinamnist.npz": "retinamnist.npz?download=1",
    "olivettifaces.mat": "5976027",
    "olivetti.npz": "5976027",
}
_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 16


@dataclass(frozen=True)
class File:
    """One file of a set.

    The checksum is that of the content, unpacked: the same for the official .gz, for a copy packed again with
    another gzip header (Debian's Fashion-MNIST), and for a plain copy.
    """

    path: str
    size: int
    sha256: str

    @property
    def url(self) -> str:
        """The official address."""
        folder, name = self.path.split("/")
        return OFFICIAL[folder] + _REMOTE.get(name, name)


def read(files: tuple[File, ...], *, root: Path | str | None) -> tuple[list[bytes], str]:
    """Return the files' checked contents, and in words where they came from.

    Looked for in `root` (or else the folder TACITA_DATA names), then in the cache, then at the official address.

    Raises:
        ValueError: If a copy does not have the right checksum.
        OSError: If a file is nowhere to be had.
    """
    found = [_read_one(file, files, root) for file in files]
    places = dict.fromkeys(place for _, place in found)
    address = files[0].url if len(files) == 1 else files[0].url.rpartition("/")[0] + "/"
    return [content for content, _ in found], f"{address} ({', '.join(places)})"


def present(file: File, *, root: Path | str | None) -> bool:
    """Whether a local copy of the file exists."""
    return any(_copy(file, folder) for folder, _ in _folders(root))


def cache_folder() -> Path:
    """Return the folder downloads go to: TACITA_CACHE, or tacita in XDG_CACHE_HOME, or in ~/.cache."""
    import pooch

    return Path(os.environ.get("TACITA_CACHE") or pooch.os_cache("tacita"))


def unpack(packed: bytes, *, limit: int, name: str) -> bytes:
    """Return gunzipped `packed`, never holding more than `limit` bytes.

    Raises:
        ValueError: If it is not a whole gzip file, or holds more.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as stream:
            content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error):
        raise ValueError(f"{name} is not a whole gzip file.") from None
    if len(content) > limit:
        raise ValueError(f"{name} unpacks to more than the {limit} bytes it should hold.")
    return content


def _read_one(file: File, files: tuple[File, ...], root: Path | str | None) -> tuple[bytes, str]:
    for folder, place in _folders(root):
        if path := _copy(file, folder):
            fix = "Delete it and it is downloaded again" if place == "cache" else "Replace it by a fresh copy"
            return _checked(file, path, name=str(path), fix=f"{fix} from {file.url}."), f"copy in {place}"
    return _download(file, files), "downloaded"


def _folders(root: Path | str | None) -> list[tuple[Path, str]]:
    place = "TACITA_DATA" if root is None else "root"
    given = os.environ.get("TACITA_DATA") if root is None else root
    cache = (cache_folder(), "cache")
    if not given:
        return [cache]
    if not Path(given).is_dir():
        raise FileNotFoundError(
            f"{place}={str(given)!r} is not a folder; name one that holds the sets, or leave it out."
        )
    return [(Path(given), place), cache]


def _copy(file: File, folder: Path) -> Path | None:
    plain = file.path.removesuffix(".gz")
    return next((folder / path for path in (f"{plain}.gz", plain) if (folder / path).is_file()), None)


def _checked(file: File, path: Path, *, name: str, fix: str) -> bytes:
    slack = 1 << 16  # a gzip file can be longer than what it holds, by its header and block marks
    try:
        if path.stat().st_size > file.size + slack:
            raise ValueError(f"{name} is longer than the {file.size} bytes it should hold.")
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = unpack(content, limit=file.size, name=name)
    except ValueError as error:
        raise ValueError(f"{error} Expected content with sha256 {file.sha256}. {fix}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(f"{name} has the wrong checksum: expected sha256 {file.sha256}, found {found}. {fix}")
    return content


def _download(file: File, files: tuple[File, ...]) -> bytes:
    """Download to a temporary file, check it, and only then give it its name in the cache."""
    import pooch

    target, log = cache_folder() / file.path, pooch.get_logger()
    contents = []

    def transfer(url: str, path: str, _: object) -> None:
        with open(path, "wb") as out:
            pooch.HTTPDownloader(timeout=_TIMEOUT, chunk_size=_CHUNK)(url, _Capped(out, file.size + _CHUNK), None)
        name, fix = f"The download of {url}", f"Nothing was kept. {_offline(files)}"
        contents.append(_checked(file, Path(path), name=name, fix=fix))

    print(f"tacita: downloading {file.url} to {target}", file=sys.stderr)
    level = log.level
    log.setLevel("WARNING")  # its own announcement asks for a checksum, which `transfer` has compared
    try:
        pooch.retrieve(file.url, None, fname=target.name, path=target.parent, downloader=transfer)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise OSError(
            f"Cannot download {file.url} to {target.parent}: {reason}. {_offline(files)} "
            "TACITA_CACHE names another folder to download to."
        ) from None
    finally:
        log.setLevel(level)
    return contents[0]


class _Capped:
    """A file that takes no more than it should hold."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.file, self.left = file, limit
        self.flush = file.flush

    def write(self, chunk: bytes) -> None:
        self.left -= len(chunk)
        if self.left < 0:
            raise OSError("the answer is longer than the file")
        self.file.write(chunk)


def _offline(files: tuple[File, ...]) -> str:
    needed = ", ".join(file.path for file in files)
    return f"Without it, set TACITA_DATA to a folder that holds {needed}."
