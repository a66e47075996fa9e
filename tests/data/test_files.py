"""Finding, checking and downloading, with a real server on this machine in the official one's place."""

import contextlib
import gc
import gzip
import hashlib
import io
import lzma
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacita.data import files
from tacita.data.files import File

# pooch leaves the connection of a failed download to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONTENT = b"M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\n" * 3000
PLAIN = File("abalone/abalone.data", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
PACKED = File("mnist/train-labels-idx1-ubyte.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(scope="module", autouse=True)
def connections_are_collected_here():
    yield
    gc.collect()


@contextlib.contextmanager
def serving(answers):
    """Serve {path: (status, body, declared length)}; yields the address and the paths that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, body, length = answers.get(self.path, (404, b"", 0))
            self.send_response(status)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("TACITA_DATA", raising=False)
    monkeypatch.setenv("TACITA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


def read(file=PLAIN, root=None):
    (content,), source = files.read((file,), root=root)
    return content, source


def put(folder, file, content):
    path = folder / file.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def left_over(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_file_is_downloaded_once_said_aloud_and_then_found_in_the_cache(cache, monkeypatch, capsys):
    with serving({"/abalone.data": (200, CONTENT, len(CONTENT))}) as (address, asked):
        monkeypatch.setitem(files.OFFICIAL, "abalone", address)
        assert read() == (CONTENT, f"{address}abalone.data (downloaded)")
        assert f"downloading {address}abalone.data" in capsys.readouterr().err
        assert read() == (CONTENT, f"{address}abalone.data (copy in cache)")
        assert capsys.readouterr().err == ""
    assert asked == ["/abalone.data"]
    assert left_over(cache) == [cache / PLAIN.path]


def test_a_packed_file_is_kept_packed_and_an_unknown_length_is_fine(cache, monkeypatch):
    packed = gzip.compress(CONTENT)
    with serving({"/train-labels-idx1-ubyte.gz": (200, packed, None)}) as (address, _):
        monkeypatch.setitem(files.OFFICIAL, "mnist", address)
        content, _ = read(PACKED)
    assert content == CONTENT
    assert (cache / PACKED.path).read_bytes() == packed


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((404, b"", 0), OSError, "Not Found"),
        ((500, b"", 0), OSError, "Internal Server Error"),
        ((200, CONTENT[:1000], len(CONTENT)), OSError, "IncompleteRead"),
        ((200, CONTENT[:1000], None), ValueError, "wrong checksum"),
        ((200, CONTENT[:-1] + b"x", len(CONTENT)), ValueError, "wrong checksum"),
        ((200, CONTENT * 3, None), OSError, "longer than the file"),
        ((200, gzip.compress(CONTENT)[:-20], None), ValueError, "not a whole gzip file"),
    ],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(cache, monkeypatch, answer, error, message):
    with serving({"/abalone.data": answer}) as (address, _):
        monkeypatch.setitem(files.OFFICIAL, "abalone", address)
        with pytest.raises(error, match=message) as caught:
            read()
    text = str(caught.value)
    assert "\n" not in text
    assert f"{address}abalone.data" in text
    assert "set TACITA_DATA to a folder that holds abalone/abalone.data" in text
    assert left_over(cache) == []


def test_offline_is_one_line_that_lists_every_file(cache, monkeypatch):
    with serving({}) as (address, _):
        pass  # the port is free again: connections are refused
    monkeypatch.setitem(files.OFFICIAL, "abalone", address)
    other = File("abalone/abalone.names", 1, "0")
    with pytest.raises(OSError, match=r"Cannot download .*refused") as caught:
        files.read((PLAIN, other), root=None)
    assert "\n" not in str(caught.value)
    assert "abalone/abalone.data, abalone/abalone.names" in str(caught.value)
    assert left_over(cache) == []


def test_a_server_that_stays_silent_is_given_up(cache, monkeypatch):
    monkeypatch.setattr(files, "_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(files.OFFICIAL, "abalone", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with pytest.raises(OSError, match=r"Cannot download .*timed out"):
            read()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.delenv("TACITA_DATA", raising=False)
    monkeypatch.setenv("TACITA_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match=r"Cannot download .*TACITA_CACHE names another folder"):
        read()


def test_the_folder_given_comes_before_the_environment_and_the_cache(cache, monkeypatch, tmp_path):
    put(cache, PLAIN, b"wrong")
    put(tmp_path / "env", PLAIN, b"wrong")
    put(tmp_path / "root", PLAIN, CONTENT)
    monkeypatch.setenv("TACITA_DATA", str(tmp_path / "env"))
    assert read(root=tmp_path / "root") == (CONTENT, f"{PLAIN.url} (copy in root)")
    with pytest.raises(ValueError, match="wrong checksum"):
        read()
    monkeypatch.setenv("TACITA_DATA", str(tmp_path / "root"))
    assert read() == (CONTENT, f"{PLAIN.url} (copy in TACITA_DATA)")


def test_one_flipped_byte_is_refused_with_name_expected_found_and_fix(cache, tmp_path):
    bad = bytearray(CONTENT)
    bad[12345] ^= 1
    path = put(tmp_path / "root", PLAIN, bytes(bad))
    with pytest.raises(ValueError, match="wrong checksum") as caught:
        read(root=tmp_path / "root")
    for part in (str(path), PLAIN.sha256, hashlib.sha256(bad).hexdigest(), f"fresh copy from {PLAIN.url}"):
        assert part in str(caught.value)
    put(cache, PLAIN, bytes(bad))
    with pytest.raises(ValueError, match="Delete it and it is downloaded again"):
        read()


@pytest.mark.parametrize("place", [30, -1, -6])
def test_one_flipped_byte_of_a_packed_file_is_refused(cache, tmp_path, place):
    bad = bytearray(gzip.compress(CONTENT))
    bad[place] ^= 1
    put(tmp_path / "root", PACKED, bytes(bad))
    with pytest.raises(ValueError, match=f"(?s){PACKED.sha256}.*fresh copy"):
        read(PACKED, root=tmp_path / "root")


def test_a_copy_packed_otherwise_or_not_at_all_is_the_same_file(cache, tmp_path):
    put(tmp_path / "one", PACKED, gzip.compress(CONTENT, 1, mtime=7))
    put(tmp_path / "two", File(PACKED.path.removesuffix(".gz"), 0, ""), CONTENT)
    assert read(PACKED, root=tmp_path / "one")[0] == read(PACKED, root=tmp_path / "two")[0] == CONTENT


def test_xz_is_unpacked_too(cache, tmp_path):
    put(tmp_path / "one", File(PLAIN.path + ".xz", 0, ""), lzma.compress(CONTENT))
    assert read(root=tmp_path / "one")[0] == CONTENT
    put(tmp_path / "two", File(PLAIN.path + ".xz", 0, ""), lzma.compress(CONTENT)[:-20])
    with pytest.raises(ValueError, match="not a whole xz file"):
        read(root=tmp_path / "two")


@pytest.fixture
def archived(monkeypatch):
    """Publish two files in one archive; returns its bytes and the files."""
    contents = {"first.bin": CONTENT, "second.bin": CONTENT[::-1]}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"inside/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    packed = stream.getvalue()
    archive = files.Archive("all.tar.gz", len(packed), hashlib.sha256(packed).hexdigest(), "inside")
    monkeypatch.setitem(files.ARCHIVES, "abalone", archive)
    listed = [File(f"abalone/{n}", len(c), hashlib.sha256(c).hexdigest()) for n, c in contents.items()]
    return packed, tuple(listed)


def test_an_archive_is_downloaded_once_for_all_its_files(cache, monkeypatch, archived):
    packed, listed = archived
    with serving({"/all.tar.gz": (200, packed, len(packed))}) as (address, asked):
        monkeypatch.setitem(files.OFFICIAL, "abalone", address)
        assert files.read(listed, root=None)[0] == [CONTENT, CONTENT[::-1]]
        assert files.read(listed, root=None) == ([CONTENT, CONTENT[::-1]], f"{address} (copy in cache)")
    assert asked == ["/all.tar.gz"]
    assert left_over(cache) == [cache / "abalone" / "all.tar.gz"]


def test_another_archive_is_refused(cache, monkeypatch, archived, tmp_path):
    packed, listed = archived
    with serving({"/all.tar.gz": (200, packed[:-9], None)}) as (address, _):
        monkeypatch.setitem(files.OFFICIAL, "abalone", address)
        with pytest.raises(ValueError, match="is another archive"):
            files.read(listed, root=None)
    assert left_over(cache) == []
    put(tmp_path / "root", File("abalone/all.tar.gz", 0, ""), packed)
    missing = File("abalone/third.bin", 1, "0")
    with pytest.raises(ValueError, match=r"not a whole archive with abalone/third\.bin in it"):
        read(missing, root=tmp_path / "root")
    short = File(listed[0].path, 10, listed[0].sha256)
    with pytest.raises(ValueError, match="unpacks to more than the 10 bytes"):
        read(short, root=tmp_path / "root")


def test_a_bomb_or_a_giant_is_refused_before_it_is_held(cache, tmp_path):
    put(tmp_path / "bomb", PACKED, gzip.compress(bytes(len(CONTENT) * 50)))
    with pytest.raises(ValueError, match="unpacks to more"):
        read(PACKED, root=tmp_path / "bomb")
    put(tmp_path / "giant", PACKED, bytes(len(CONTENT) * 50))
    with pytest.raises(ValueError, match="is longer than"):
        read(PACKED, root=tmp_path / "giant")


def test_a_folder_that_does_not_exist_is_no_reason_to_download(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TACITA_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"TACITA_DATA=.*typo.* is not a folder"):
        read()


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TACITA_CACHE", str(tmp_path / "own"))
    assert files.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TACITA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "tacita"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / ".cache" / "tacita"
