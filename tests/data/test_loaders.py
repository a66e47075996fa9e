"""The named sets: real files where they are at hand, small stand-ins of the same form always."""

import csv
import gzip
import hashlib
import io
import lzma
import os
import sys

import numpy as np
import pytest
from scipy.io import savemat

from tacita.data import NAMES, Dataset, files, formats, load, loaders

SHAPES = {
    "digits": ((1437, 1, 8, 8), 360, 10),
    "mnist": ((60000, 1, 28, 28), 10000, 10),
    "fashion-mnist": ((60000, 1, 28, 28), 10000, 10),
    "adult": ((32561, 104), 16281, 2),
    "abalone": ((3341, 10), 836, 2),
    "olivetti": ((320, 1, 64, 64), 80, 40),
    "retinamnist": ((1080, 3, 28, 28), 400, 5),
    "cifar10": ((50000, 3, 32, 32), 10000, 10),
}
LARGE = ("cifar10",)  # seconds to unpack


def have(name):
    listed = (loaders._OLIVETTI_COPY,) if name == "olivetti" else loaders._files(name)
    root = os.environ.get("TACITA_DATA")
    if root and not os.path.isdir(root):
        return False
    return all(files.present(file, root=None) for file in listed)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in NAMES])
def dataset(request):
    if not have(request.param):
        pytest.skip(f"{request.param} is not at hand: set TACITA_DATA to a folder that holds it")
    return load(request.param)


def test_real_files_have_the_documented_form(dataset):
    shape, test, classes = SHAPES[dataset.name]
    assert dataset.inputs.shape == shape
    assert dataset.test_inputs.shape == (test, *shape[1:])
    assert dataset.nominal_size == len(dataset.inputs) == len(dataset.targets)
    assert len(dataset.test_targets) == test
    assert len(dataset.classes) == classes
    for inputs, targets in ((dataset.inputs, dataset.targets), (dataset.test_inputs, dataset.test_targets)):
        assert inputs.dtype == np.float32
        assert targets.dtype == np.int64
        assert inputs.flags.writeable
        assert inputs.flags.c_contiguous
        assert set(np.unique(targets)) == set(range(classes))
        assert inputs.min() >= (0 if inputs.ndim == 4 else -1)
        assert inputs.max() <= 1
    assert dataset.source
    assert dataset.terms
    assert len(dataset.feature_names) == (0 if dataset.inputs.ndim == 4 else shape[1])


def test_printing_a_dataset_shows_no_record_and_no_count():
    data = load("digits")
    assert "array" not in repr(data)
    assert "360" not in repr(data)


def test_the_digits_split_is_fixed_and_complete():
    train, test = loaders._split(1797, 360)
    assert sorted([*train, *test]) == list(range(1797))
    # random.Random(20260101).random() for each index, sorted: the same on every Python (its documentation promises so).
    assert hashlib.sha256(test.astype("<i8").tobytes()).hexdigest() == DIGITS_TEST
    from sklearn.datasets import load_digits

    np.testing.assert_array_equal(load("digits").inputs[:, 0] * 16, load_digits().images[train])


DIGITS_TEST = "ef04a461a420aab61e08ebda7874e77efb98af5eff632a85710783e8117ce9d2"


@pytest.mark.skipif(not have("adult"), reason="adult is not at hand: set TACITA_DATA to a folder that holds it")
def test_adult_equals_a_plain_reading():
    data = load("adult")
    (content, _), _ = files.read(loaders._files("adult"), root=None)
    rows = [row for row in csv.reader(content.decode().splitlines(), skipinitialspace=True) if row]
    np.testing.assert_array_equal(data.targets, [row[14] == ">50K" for row in rows])
    np.testing.assert_array_equal(data.groups["sex"], [row[9] for row in rows])
    np.testing.assert_array_equal(data.groups["race"], [row[8] for row in rows])
    np.testing.assert_allclose(data.inputs[:, 0], [int(row[0]) / 50 - 1 for row in rows], atol=1e-6)
    first = data.feature_names.index("workclass=Private")
    known = data.inputs[:, first : first + 8].sum(axis=1)
    np.testing.assert_array_equal(known, [row[1] != "?" for row in rows])
    gain = data.inputs[:, data.feature_names.index("capital-gain")]
    np.testing.assert_allclose(gain, [2 * np.log1p(int(row[10])) / np.log(100000) - 1 for row in rows], atol=1e-6)
    assert not any(name.startswith("fnlwgt") for name in data.feature_names)
    # adult.names: 24.78% of the labels of all people with known country, job and class are >50K, 23.93% of all.
    assert np.concatenate([data.targets, data.test_targets]).mean() == pytest.approx(0.2393, abs=5e-5)


@pytest.mark.skipif(not have("abalone"), reason="abalone is not at hand: set TACITA_DATA to a folder that holds it")
def test_abalone_has_both_targets():
    older, rings = load("abalone"), load("abalone", target="rings")
    np.testing.assert_array_equal(older.inputs, rings.inputs)
    assert rings.classes is None
    assert rings.targets.dtype == np.float32
    both = np.rint(rings.restore(np.concatenate([rings.targets, rings.test_targets])))
    assert (both.min(), both.max()) == (1, 29)  # abalone.names
    np.testing.assert_array_equal(older.targets, np.rint(rings.restore(rings.targets)) >= 10)
    np.testing.assert_array_equal(older.groups["sex"] == "M", older.inputs[:, 0] == 1)


@pytest.mark.skipif(not have("olivetti"), reason="olivetti is not at hand: set TACITA_DATA to a folder that holds it")
def test_olivetti_people_are_in_the_published_order():
    (content,), _ = files.read((loaders._OLIVETTI_COPY,), root=None)
    with np.load(io.BytesIO(content)) as archive:
        np.testing.assert_array_equal(archive["target"], np.repeat(np.arange(40), 10))
        np.testing.assert_allclose(load("olivetti").test_inputs[0, 0] * 255, archive["images"][8], atol=1e-4)


@pytest.mark.skipif(not have("mnist"), reason="mnist is not at hand: set TACITA_DATA to a folder that holds it")
def test_one_flipped_byte_in_a_real_file_is_refused(tmp_path, monkeypatch):
    source = files._copy(loaders._files("mnist")[3], files._folders(None)[0][0])
    if source is None:
        pytest.skip("mnist is in the cache only")
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / source.name).write_bytes(content)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.*sha256"):
        files.read(loaders._files("mnist")[3:], root=tmp_path)


def test_names_and_targets_are_checked():
    with pytest.raises(ValueError, match="name must be one of 'digits', 'mnist'"):
        load("cifar")
    with pytest.raises(ValueError, match="target is a choice of abalone only"):
        load("digits", target="parity")
    with pytest.raises(ValueError, match="target must be one of 'age', 'rings'"):
        load("abalone", target="weight")
    with pytest.raises(ValueError, match=r"use classes\[target\]"):
        load("digits").restore(0.5)


def test_digits_without_scikit_learn_name_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install -e .\.\[torch\]"):
        load("digits")


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put small files of a set's form, with their own checksums, in the place of the real ones."""

    def put(name, contents):
        rows = []
        for path, content in contents.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / path).write_bytes(PACKERS.get(path[-3:], bytes)(content))
            path = path.removesuffix(".xz")
            rows.append(f"{name}/{path} {len(content)} {hashlib.sha256(content).hexdigest()}")
        monkeypatch.setattr(loaders, "_MANIFEST", "\n".join(rows))
        monkeypatch.setenv("TACITA_CACHE", str(tmp_path / "cache"))
        return load(name, root=tmp_path)

    return put


def test_idx_sets(stand_in, rng):
    images = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    pixels = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()
    digits = b"\0\0\x08\x01" + (5).to_bytes(4, "big") + labels.tobytes()
    for name in ("mnist", "fashion-mnist"):
        data = stand_in(name, {"a.gz": pixels, "b.gz": digits, "c.gz": pixels, "d.gz": digits})
        assert isinstance(data, Dataset)
        np.testing.assert_array_equal(np.rint(data.inputs[:, 0] * 255), images)
        np.testing.assert_array_equal(data.test_targets, labels)
        assert data.source.endswith("(copy in root)")


def test_adult_form(stand_in):
    line = "39, ?, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 0, 0, 40, Peru, {}\n"
    train = (line.format("<=50K") + line.format(">50K") + "\n").encode()
    test = ("|1x3 Cross validator\n" + line.format(">50K.") + "\n").encode()
    data = stand_in("adult", {"adult.data": train, "adult.test": test})
    np.testing.assert_array_equal(data.targets, [0, 1])
    np.testing.assert_array_equal(data.test_targets, [1])
    np.testing.assert_array_equal(data.inputs[1], data.test_inputs[0])
    row = dict(zip(data.feature_names, data.inputs[0].tolist(), strict=True))
    assert sum(value for name, value in row.items() if name.startswith("workclass=")) == 0
    assert (row["native-country=Peru"], row["capital-gain"], row["education-num"]) == (1, -1, pytest.approx(0.6))


def test_abalone_form(stand_in):
    data = stand_in("abalone", {"abalone.data": b"I,0.5,0.5,0.25,1.5,0.75,0.5,0.75,10\n" * 4177})
    np.testing.assert_array_equal(data.inputs[0], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    assert data.targets.all()
    assert set(data.test_groups["sex"]) == {"I"}


def test_retinamnist_form(stand_in, rng):
    images = rng.integers(0, 256, (2, 28, 28, 3), dtype=np.uint8)
    stream = io.BytesIO()
    labels = np.array([[4], [0]], dtype=np.uint8)
    np.savez(stream, train_images=images, test_images=images, train_labels=labels, test_labels=labels)
    data = stand_in("retinamnist", {"retinamnist.npz": stream.getvalue()})
    np.testing.assert_array_equal(np.rint(data.inputs[1, 2] * 255), images[1, :, :, 2])
    np.testing.assert_array_equal(data.targets, [4, 0])


def test_olivetti_as_matlab_file(stand_in, rng):
    images = rng.integers(0, 256, (400, 64, 64), dtype=np.uint8)
    stream = io.BytesIO()
    savemat(stream, {"faces": images.transpose(0, 2, 1).reshape(400, 4096).T})
    data = stand_in("olivetti", {"olivettifaces.mat": stream.getvalue()})
    np.testing.assert_array_equal(np.rint(data.test_inputs[3, 0] * 255), images[19])
    assert data.test_targets[3] == 1


def test_cifar10_form(stand_in, rng):
    batches = rng.integers(0, 10, (6, 2, 3073), dtype=np.uint8)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin.xz"]
    data = stand_in("cifar10", {name: batch.tobytes() for name, batch in zip(names, batches, strict=True)})
    np.testing.assert_array_equal(data.targets, batches[:5, :, 0].ravel())
    np.testing.assert_array_equal(data.test_targets, batches[5, :, 0])
    blue = np.rint(data.inputs[3, 2] * 255)  # the second record of the second batch, by rows
    np.testing.assert_array_equal(blue, batches[1, 1, 1 + 2048 :].reshape(32, 32))
    assert data.classes[3] == "cat"


@pytest.mark.slow
@pytest.mark.skipif(not have("cifar10"), reason="cifar10 is not at hand: set TACITA_DATA to a folder that holds it")
def test_the_first_test_image_of_cifar10_is_a_cat():
    (content,), source = files.read(loaders._files("cifar10")[-1:], root=None)
    images, labels = formats.parse_cifar(content, name="test_batch.bin")
    assert images.shape == (10000, 3, 32, 32)
    assert [loaders._CIFAR10[label] for label in labels[:4]] == ["cat", "ship", "ship", "airplane"]  # as on its site
    np.testing.assert_array_equal(np.bincount(labels), np.full(10, 1000))
    assert "cifar-10-binary.tar.gz" in source
