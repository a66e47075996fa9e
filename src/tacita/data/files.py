"""Locate, verify and, after announcing it, download the files of the named sets."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import sys
import tarfile
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
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
}
_REMOTE = {  # where the address does not end in the file's name
    "retinamnist.npz": "retinamnist.npz?download=1",
    "olivettifaces.mat": "5976027",
    "olivetti.npz": "5976027",
}
_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 16
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


@dataclass(frozen=True)
class Archive:
    """A .tar.gz that a whole set is published in, with its size and checksum as it is, packed."""

    name: str
    size: int
    sha256: str
    folder: str  # inside it


ARCHIVES = {  # the official md5 is c32a1d4ab5d03f1284b67883e8d87530
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "cifar-10-batches-bin",
    ),
}


@dataclass(frozen=True)
class File:
    """One file of a set.

    The checksum is that of the content, unpacked: the same for the official .gz, for a copy packed again with
    another gzip header (Debian's Fashion-MNIST) or by xz, for a plain copy, and inside an archive.
    """

    path: str
    size: int
    sha256: str

    @property
    def archive(self) -> Archive | None:
        """The archive that it is published in, if it is not published by itself."""
        return ARCHIVES.get(self.path.split("/")[0])

    @property
    def url(self) -> str:
        """The official address."""
        folder, name = self.path.split("/")
        name = self.archive.name if self.archive else _REMOTE.get(name, name)
        return OFFICIAL[folder] + name


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
    """Return `packed` unpacked if it is a gzip or xz file, as it is otherwise; never hold more than `limit` bytes.

    Raises:
        ValueError: If it is not a whole file, or holds more.
    """
    kind = "gzip" if packed.startswith(_GZIP) else "xz" if packed.startswith(_XZ) else None
    if kind is None:
        return packed
    try:
        with gzip.open(BytesIO(packed)) if kind == "gzip" else lzma.open(BytesIO(packed)) as stream:
            content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        raise ValueError(f"{name} is not a whole {kind} file.") from None
    return _limited(content, limit, name)


def _limited(content: bytes, limit: int, name: str) -> bytes:
    if len(content) > limit:
        raise ValueError(f"{name} unpacks to more than the {limit} bytes it should hold.")
    return content


def _member(file: File, archive: Archive, packed: bytes, *, name: str) -> bytes:
    """Return one file of an archive that has the right checksum; nothing is written to disk."""
    found = hashlib.sha256(packed).hexdigest()
    if found != archive.sha256:
        raise ValueError(f"{name} is another archive: its sha256 is {found}, not {archive.sha256}.")
    try:
        with tarfile.open(fileobj=BytesIO(packed), mode="r:gz") as tar:
            member = tar.extractfile(f"{archive.folder}/{file.path.split('/')[1]}")
            content = member.read(file.size + 1) if member else b""
    except (KeyError, OSError, EOFError, zlib.error, tarfile.TarError):
        raise ValueError(f"{name} is not a whole archive with {file.path} in it.") from None
    return _limited(content, file.size, name)


def _read_one(file: File, files: tuple[File, ...], root: Path | str | None) -> tuple[bytes, str]:
    for folder, place in _folders(root):
        if path := _copy(file, folder):
            fix = "Delete it and it is downloaded again" if place == "cache" else "Replace it by a fresh copy"
            archive = file.archive if path.name.endswith(".tar.gz") else None
            content = _checked(file, path, name=str(path), fix=f"{fix} from {file.url}.", archive=archive)
            return content, f"copy in {place}"
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
    names = [f"{plain}.gz", f"{plain}.xz", plain]
    if file.archive:
        names.append(f"{plain.split('/')[0]}/{file.archive.name}")
    return next((folder / path for path in names if (folder / path).is_file()), None)


def _checked(file: File, path: Path, *, name: str, fix: str, archive: Archive | None = None) -> bytes:
    """Return the content of a copy, or of the copy of an archive that holds it, if all checksums are right."""
    size = archive.size if archive else file.size
    slack = 1 << 16  # a packed file can be longer than what it holds, by its header and block marks
    try:
        if path.stat().st_size > size + slack:
            raise ValueError(f"{name} is longer than the {size} bytes it should hold.")
        packed = path.read_bytes()
        content = _member(file, archive, packed, name=name) if archive else unpack(packed, limit=file.size, name=name)
    except ValueError as error:
        raise ValueError(f"{error} Expected content with sha256 {file.sha256}. {fix}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(f"{name} has the wrong checksum: expected sha256 {file.sha256}, found {found}. {fix}")
    return content


def _download(file: File, files: tuple[File, ...]) -> bytes:
    """Download to a temporary file, check it, and only then give it its name in the cache."""
    import pooch

    archive, log = file.archive, pooch.get_logger()
    target = (cache_folder() / file.path).with_name(archive.name) if archive else cache_folder() / file.path
    size = archive.size if archive else file.size
    contents = []

    def transfer(url: str, path: str, _: object) -> None:
        with open(path, "wb") as out:
            pooch.HTTPDownloader(timeout=_TIMEOUT, chunk_size=_CHUNK)(url, _Capped(out, size + _CHUNK), None)
        name, fix = f"The download of {url}", f"Nothing was kept. {_offline(files)}"
        contents.append(_checked(file, Path(path), name=name, fix=fix, archive=archive))

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
