"""The kernel that draws noise on a GPU, in Triton's interpreter; and that it compiles for two architectures."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from tests.privacy.test_noise import GRID

pytest.importorskip("triton", reason="PyTorch's build without CUDA has no Triton")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("noise on a GPU")]
STD, BLOCKS = 1.5, 256


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("interpreted") / "arrays.npz"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.privacy.interpreted", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(path) as arrays:
        return dict(arrays)


def test_the_generator_is_chacha20(found):
    """The example of RFC 8439, section 2.3.2; and blocks of our own key as another implementation has them."""
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert found["rfc"].astype("<u4").tobytes().hex() == expected
    assert np.array_equal(found["stream"], keystream(16 * 16))


def keystream(words: int) -> np.ndarray:
    from stages.privacy.noise_on_gpu import words_of
    from stages.privacy.randomness import Key

    given = words_of(Key.from_seed(3), 4, 7).astype("<u4").tobytes()
    cipher = Cipher(algorithms.ChaCha20(given[:32], bytes(4) + given[32:]), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * words)), dtype="<u4")


def test_its_numbers_are_those_of_box_and_muller(found):
    n = len(found["whole"])
    words = keystream(16 * -(-n // 8)).astype(np.uint64).reshape(-1, 4)
    pairs = (words[:, 0::2] << np.uint64(32) | words[:, 1::2]).astype(float)
    radius, angle = np.sqrt(-2 * np.log((pairs[:, 0] + 1) / 2.0**64)), 2 * np.pi * pairs[:, 1] / 2.0**64
    gaussian = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:n]
    assert np.abs(found["whole"] - STD * gaussian).max() < 2e-7 * 10


def test_parts_of_a_tensor_and_its_precision_and_shape_make_no_difference(found):
    assert np.array_equal(found["parts"], found["whole"])
    assert np.array_equal(found["again"].reshape(-1), found["whole"]) and found["again"].dtype == np.float32


def test_another_step_or_tensor_has_other_noise(found):
    for other in ("next_step", "next_tensor"):
        assert abs(np.corrcoef(found["whole"], found[other])[0, 1]) < 5 / math.sqrt(len(found["whole"]))


def test_the_signal_is_added_and_what_leaves_is_on_the_grid(found):
    assert np.allclose(found["both"] - found["whole"], found["signal"] * GRID, atol=1e-6)
    fine = found["fine"] / GRID
    assert np.array_equal(fine, np.rint(fine))
    for k in range(-4, 5):  # every grid point is reached as often as the rounded Gaussian says
        expected = fine.size * (stats.norm.cdf((k + 0.5) / 3) - stats.norm.cdf((k - 0.5) / 3))
        assert abs(np.sum(fine == k) - expected) < 6 * math.sqrt(expected)


def test_noise_is_gaussian_with_the_stated_standard_deviation(found):
    sample = found["many"].astype(float) / STD
    assert abs(sample.mean()) < 5 / math.sqrt(sample.size)
    assert abs(sample.std() - 1) < 5 / math.sqrt(2 * sample.size)
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    lags = [np.corrcoef(sample[:-lag], sample[lag:])[0, 1] for lag in range(1, 17)]
    assert np.abs(lags).max() < 5 / math.sqrt(sample.size)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("signal", ["*fp64", "*fp32"])
def test_it_compiles_for_gpus_that_are_not_here(architecture, signal, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from stages.privacy.noise_on_gpu import add_noise

    types = {"signal": signal, "result": "*fp32", "size": "i64", "place": "i64", "words": "*u32", "scales": "*fp64"}
    source = ASTSource(add_noise, {**types, "blocks": "constexpr"}, {"blocks": BLOCKS})
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    assert len(compiled.asm["cubin"]) > 1000 and f"sm_{architecture}" in compiled.asm["ptx"]
