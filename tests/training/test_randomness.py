"""Where coins and noise come from."""

import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen.aes import AESCounter
from scipy.stats import binomtest, kstest, norm

from tacita.training.randomness import fresh_draws, randomness, secure_generator
from tacita.training.step import coin_bound, poisson_sample
from tests.training.trainings import FALSE_ALARM, train


def test_f26_the_bits_are_those_of_aes_in_counter_mode():
    """By another implementation: AES-128 of the counter 0, 1, 2, …"""
    for key in (0, 1, 2**128 - 1, 0x0F1E2D3C4B5A69788796A5B4C3D2E1F0):
        cipher = Cipher(algorithms.AES(key.to_bytes(16, "little")), modes.ECB()).encryptor()
        blocks = b"".join(cipher.update(i.to_bytes(16, "little")) for i in range(300))
        assert np.array_equal(AESCounter(key=key).random_raw(600), np.frombuffer(blocks, "<u8"))


def test_without_a_seed_every_stream_has_a_key_of_its_own():
    several = [randomness(None) for _ in range(3)]
    streams = [stream for one in several for stream in (one.sampling, one.noise)] + [secure_generator()]
    streams += [streams[0].spawn(1)[0] for _ in range(2)]
    assert all(type(stream.bit_generator) is AESCounter for stream in streams)
    assert len({stream.bit_generator.random_raw() for stream in streams}) == len(streams)
    assert len({one.fingerprint for one in several}) == 3
    assert not any(one.seeded for one in several)


def test_a_seed_gives_a_statistical_generator_and_says_so(blobs):
    one, other = randomness(7), randomness(7)
    assert type(one.noise.bit_generator) is np.random.PCG64DXSM
    assert one.noise.random() == other.noise.random()
    assert one.seeded
    labels = {seed: train(blobs, panel=0, steps=2, seed=seed).run().label().public() for seed in (None, 7)}
    assert "PCG64" in " ".join(labels[7].not_hardened)
    assert "PCG64" not in " ".join(labels[None].not_hardened)
    assert any(a.code == "fresh-noise" for a in labels[None].checks)


@pytest.mark.stat
def test_normals_and_coins_of_secure_bits_have_their_laws():
    rng = secure_generator()
    noise = rng.standard_normal(200_000)
    assert kstest(noise, norm.cdf).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 5 / math.sqrt(len(noise))
    for size, rate in ((100_000, 0.013), (3_000_000, 0.0007)):  # also where coins are drawn from a byte each
        assert binomtest(len(poisson_sample(size, rate, rng=rng)), size, rate).pvalue > FALSE_ALARM


class Counting:
    """Gives words of 64 bits in a row, up from the first one, in the place of a generator."""

    def __init__(self, first=0):
        self.first = first

    def integers(self, high, *, size, dtype, endpoint):
        assert (high, dtype, endpoint) == (2**64 - 1, np.uint64, True)
        return np.uint64(self.first) + np.arange(size, dtype=np.uint64)


@pytest.mark.parametrize("rate", [1.0, 1.5, 7.0, 7.999])  # in units of 2^-64
def test_a_coin_is_heads_for_no_more_words_than_the_rate_pays_for(rate):
    assert len(poisson_sample(20, rate / 2**64, rng=Counting())) == math.floor(rate)


def test_coins_at_both_ends_and_between():
    assert coin_bound(0.5) == 2**63
    assert coin_bound(1.0) == 2**64
    assert coin_bound(0.1) <= 2**64 / 10 < coin_bound(0.1) + 2**11  # of a rate in 53 bits
    assert len(poisson_sample(9, 1.0, rng=Counting(2**64 - 9))) == 9
    assert poisson_sample(9, 0.5, rng=Counting(2**63 - 4)).tolist() == [0, 1, 2, 3]


def test_draws_around_records_do_not_move_the_streams():
    for one in (randomness(None), randomness(3)):
        before = one.noise.bit_generator.state
        with fresh_draws(one.noise):
            first = np.random.rand()  # noqa: NPY002
        with fresh_draws(one.noise):
            assert np.random.rand() != first  # noqa: NPY002
        np.testing.assert_equal(one.noise.bit_generator.state, before)
