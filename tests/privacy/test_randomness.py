from randomgen import AESCounter

from stages.privacy.randomness import Key


def draw(key: Key, purpose: str = "noise", step: int = 0) -> list[float]:
    return key.stream(purpose, step).standard_normal(4).tolist()


def test_a_stream_is_a_pure_function_of_key_purpose_and_step():
    key = Key.from_os()
    assert draw(key, "noise", 5) == draw(key, "noise", 5)
    assert draw(key, "noise", 5) != draw(key, "noise", 6)
    assert draw(key, "noise", 5) != draw(key, "sample", 5)


def test_keys_from_the_system_never_repeat():
    assert len({Key.from_os().secret for _ in range(1000)}) == 1000
    assert draw(Key.from_os()) != draw(Key.from_os())


def test_a_key_does_not_show_its_secret():
    key = Key.from_os()
    assert key.secret.hex() not in repr(key) and str(key.secret) not in repr(key)
    assert len(key.secret) == 32


def test_the_generator_is_aes():
    """The example of FIPS 197, appendix C.1; and a key's streams come from it."""
    key, plain = bytes.fromhex("000102030405060708090a0b0c0d0e0f"), bytes.fromhex("00112233445566778899aabbccddeeff")
    generator = AESCounter(key=int.from_bytes(key, "little"), counter=int.from_bytes(plain, "little"))
    assert generator.random_raw(2).tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    assert isinstance(Key.from_os().stream("noise", 0).bit_generator, AESCounter)
