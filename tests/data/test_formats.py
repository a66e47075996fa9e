"""IDX, CIFAR batches and NPZ are read strictly; whatever the bytes, only ValueError and OSError come out."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacita.data.formats import parse_cifar, parse_idx, read_npz


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def npz(**arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def refusal(call, *kinds):
    """Return the error of one of the kinds that the call raises, or None; any other passes."""
    try:
        call()
    except kinds as error:
        return error
    return None


def test_idx_round_trip(rng):
    array = rng.integers(0, 256, (3, 4, 5), dtype=np.uint8)
    np.testing.assert_array_equal(parse_idx(idx(array), name="x"), array)


GOOD = idx(np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "two zero bytes"),
        (b"\1" + GOOD[1:], "two zero bytes"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "unsigned bytes"),
        (GOOD[:3] + b"\0" + GOOD[4:], "1 to 4 dimensions"),
        (GOOD[:3] + b"\x09" + GOOD[4:], "1 to 4 dimensions"),
        (GOOD[:7], "inside its IDX header"),
        (GOOD[:-1], "exactly the bytes"),
        (GOOD + b"\0", "exactly the bytes"),
        (bytes([0, 0, 8, 4]) + b"\xff" * 16, "exactly the bytes"),
    ],
)
def test_idx_refuses_all_else(content, message):
    with pytest.raises(ValueError, match=message):
        parse_idx(content, name="x")


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"\0\0\x08" + tail))
def test_any_bytes_as_idx(content):
    error = refusal(lambda: parse_idx(content, name="x"), ValueError)
    assert error is None or str(error).startswith("x ")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "whole records"), (bytes(3072), "whole records"), (b"\x0a" + bytes(3072), "above 9")]
)
def test_cifar_refuses_all_else(content, message):
    with pytest.raises(ValueError, match=f"^x .*{message}"):
        parse_cifar(content, name="x")


def test_npz_round_trip(rng):
    arrays = {"a": rng.normal(size=(4, 3)), "b": np.array(["x", "yy"]), "c": np.asfortranarray(rng.normal(size=(2, 5)))}
    found = read_npz(io.BytesIO(npz(**arrays)), arrays, name="f")
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array)


def test_npz_refuses_objects_gaps_and_lies(monkeypatch):
    with pytest.raises(ValueError, match="Python objects are never unpickled"):
        read_npz(io.BytesIO(npz(a=np.array([{}], dtype=object))), ["a"], name="f")
    with pytest.raises(ValueError, match="f: array 'b' is missing"):
        read_npz(io.BytesIO(npz(a=np.arange(3))), ["b"], name="f")
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    lie = stream.getvalue().replace(b"(3,), ", b"(9**9)")
    longer = stream.getvalue().replace(b"(3,), }   ", b"(3333,), }")
    for content in (lie, longer):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as out:
            out.writestr("a.npy", content)
        with pytest.raises(ValueError, match="not an NPZ archive"):
            read_npz(archive, ["a"], name="f")
    monkeypatch.setattr("tacita.data.formats._MAX_ARRAY", 1000)
    with pytest.raises(ValueError, match="larger than"):
        read_npz(io.BytesIO(npz(a=np.zeros(10**6))), ["a"], name="f")


SECRET = npz(a=np.array(["SECRET"] * 5), b=np.arange(5))


@given(st.binary(max_size=50) | st.tuples(st.integers(0, len(SECRET) - 1), st.integers(1, 255)))
def test_any_damage_to_npz(damage):
    if isinstance(damage, tuple):
        content = bytearray(SECRET)
        content[damage[0]] ^= damage[1]
    else:
        content = damage
    error = refusal(lambda: read_npz(io.BytesIO(bytes(content)), ["a", "b"], name="f"), ValueError, OSError)
    assert "SECRET" not in str(error)
    assert "\n" not in str(error)
