"""The codec chain: compression, encryption, and what users plug in."""

import secrets
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.sdk.codec import Binding, Chain, Codec, Compression
from kagzi.sdk.encryption import Encryption
from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.payload import Payload, decode, encode

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
INPUT = Binding("default", "order", "input")
LARGE = encode({"text": "kagzi " * 1000})


class Reversed:
    """A codec as a user would write one."""

    name = "reversed"

    def encode(self, data: bytes, _binding: Binding) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, _binding: Binding) -> bytes:
        return data[::-1]


class Broken:
    name = "broken"

    def encode(self, _data: bytes, _binding: Binding) -> bytes:
        raise RuntimeError("no disk")

    def decode(self, _data: bytes, _binding: Binding) -> bytes:
        raise RuntimeError("no disk")


def encryption(current: str = "2025", **keys: bytes) -> Encryption:
    return Encryption(keys={"2024": OLD, "2025": NEW, **keys}, current=current)


def test_without_codecs_a_payload_passes_through_unchanged() -> None:
    chain = Chain()
    assert chain.encode(LARGE, INPUT) is LARGE
    assert chain.decode(LARGE, INPUT) is LARGE


def test_the_encoding_records_the_chain_and_decoding_follows_it() -> None:
    chain = Chain([Compression(), encryption()])
    sealed = chain.encode(LARGE, INPUT)
    assert sealed.encoding == "json+zlib+aes256gcm"
    assert len(sealed.data) < len(LARGE.data)
    assert chain.decode(sealed, INPUT) == LARGE
    assert decode(chain.decode(sealed, INPUT)) == {"text": "kagzi " * 1000}


def test_a_chain_in_another_order_still_reads_what_was_written() -> None:
    sealed = Chain([Compression(), encryption()]).encode(LARGE, INPUT)
    assert Chain([Reversed(), encryption(), Compression()]).decode(sealed, INPUT) == LARGE


@given(st.binary(max_size=5000), st.sampled_from(["input", "output", "step", "signal"]))
def test_any_bytes_survive_the_whole_chain(data: bytes, role: Any) -> None:
    chain = Chain([Reversed(), Compression(min_size=10), encryption()])
    binding = Binding("näme space", "order|x", role)
    assert chain.decode(chain.encode(Payload(data), binding), binding).data == data


def test_small_and_incompressible_payloads_are_left_as_they_are() -> None:
    chain = Chain([Compression(min_size=100)])
    small, noise = Payload(b"1" * 99), Payload(secrets.token_bytes(1000))
    assert chain.encode(small, INPUT) is small
    assert chain.encode(noise, INPUT) is noise
    assert chain.encode(Payload(b"1" * 100), INPUT).encoding == "json+zlib"


def test_a_missing_codec_is_named_with_those_that_are_there() -> None:
    sealed = Chain([Compression(), Reversed()]).encode(LARGE, INPUT)
    with pytest.raises(PayloadError, match=r"the codec 'reversed', which is missing here \(there is: zlib\)"):
        Chain([Compression()]).decode(sealed, INPUT)
    with pytest.raises(PayloadError, match=r"missing here \(there is: none\)"):
        Chain().decode(sealed, INPUT)


def test_a_codec_that_fails_is_named() -> None:
    with pytest.raises(PayloadError, match="The codec 'broken' could not encode: RuntimeError: no disk"):
        Chain([Broken()]).encode(LARGE, INPUT)
    with pytest.raises(PayloadError, match="The codec 'broken' could not decode"):
        Chain([Broken()]).decode(Payload(b"x", "json+broken"), INPUT)


def test_codecs_need_names_of_their_own_that_fit_into_the_encoding() -> None:
    with pytest.raises(ConfigError, match="same name"):
        Chain([Reversed(), Reversed()])

    class Plus(Reversed):
        name = "a+b"

    with pytest.raises(ConfigError, match="cannot be a codec's name"):
        Chain([Plus()])


def test_a_payload_that_would_unpack_to_gigabytes_is_refused() -> None:
    bomb = Payload(zlib.compress(bytes(100_000_000)), "json+zlib")
    tracemalloc.start()
    with pytest.raises(PayloadError, match="unpacks to more than max_size"):
        Chain([Compression(max_size=1_000_000)]).decode(bomb, INPUT)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    exact = Chain([Compression(max_size=1_000_000)])
    assert exact.decode(Payload(zlib.compress(bytes(1_000_000)), "json+zlib"), INPUT).data == bytes(1_000_000)
    with pytest.raises(PayloadError, match="larger than max_size"):
        exact.encode(Payload(bytes(1_000_001)), INPUT)


@pytest.mark.parametrize(
    "data", [b"", b"x", zlib.compress(b"abc")[:-1], zlib.compress(b"abc") + b"more", b"\x01" + zlib.compress(b"abc")]
)
def test_damaged_compressed_data_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match="damaged"):
        Chain([Compression()]).decode(Payload(data, "json+zlib"), INPUT)


def test_equal_payloads_are_sealed_differently_and_show_nothing() -> None:
    codec = encryption()
    first, second = codec.encode(LARGE.data, INPUT), codec.encode(LARGE.data, INPUT)
    assert first != second
    assert b"kagzi kagzi" not in first


def test_keys_rotate_while_old_payloads_stay_readable() -> None:
    sealed = encryption(current="2024").encode(b"data", INPUT)
    assert encryption(current="2025").decode(sealed, INPUT) == b"data"
    with pytest.raises(PayloadError, match=r"the key '2024', which is missing here \(there is: 2025\)"):
        Encryption(keys={"2025": NEW}, current="2025").decode(sealed, INPUT)


@pytest.mark.parametrize("change", [{"namespace": "other"}, {"workflow_type": "refund"}, {"role": "output"}])
def test_data_moved_to_another_place_does_not_decrypt(change: dict[str, Any]) -> None:
    codec = encryption()
    sealed = codec.encode(b"data", INPUT)
    assert codec.decode(sealed, replace(INPUT)) == b"data"
    with pytest.raises(PayloadError, match="cannot be decrypted"):
        codec.decode(sealed, replace(INPUT, **change))


def test_parts_of_a_binding_cannot_be_shifted_into_each_other() -> None:
    codec = encryption()
    sealed = codec.encode(b"data", Binding("ab", "c", "input"))
    with pytest.raises(PayloadError):
        codec.decode(sealed, Binding("a", "bc", "input"))


def test_every_changed_byte_is_noticed() -> None:
    codec = encryption()
    sealed = codec.encode(b"data", INPUT)
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        with pytest.raises(PayloadError):
            codec.decode(changed, INPUT)
    for length in range(len(sealed)):
        with pytest.raises(PayloadError):
            codec.decode(sealed[:length], INPUT)


def test_another_key_under_the_same_id_does_not_decrypt() -> None:
    sealed = Encryption(keys={"k": OLD}, current="k").encode(b"data", INPUT)
    with pytest.raises(PayloadError, match="the key 'k' is not the one"):
        Encryption(keys={"k": NEW}, current="k").decode(sealed, INPUT)


def test_keys_are_never_shown() -> None:
    codec = Encryption(keys={"2024": b"k" * 32}, current="2024")
    assert repr(codec) == "Encryption(keys=['2024'], current='2024')"
    with pytest.raises(ConfigError) as refused:
        Encryption(keys={"2024": b"secret"}, current="2024")
    assert "secret'" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "current", "words"),
    [
        ({}, "2024", "none given"),
        ({"2024": OLD}, "2025", "current='2025'"),
        ({"2024": b"short"}, "2024", "32 bytes"),
        ({"2024": "x" * 32}, "2024", "32 bytes"),
        ({"": OLD}, "", "1 to 255 bytes"),
        ({"x" * 256: OLD}, "x" * 256, "1 to 255 bytes"),
    ],
)
def test_wrong_keys_are_refused_when_they_are_given(keys: Any, current: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Encryption(keys=keys, current=current)


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 10}, {"min_size": -1}, {"min_size": 5, "max_size": 4}])
def test_wrong_options_of_compression_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="Compression"):
        Compression(**options)


def test_encryption_without_its_package_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['cryptography'] = None\n"
        "from kagzi.sdk.encryption import Encryption\nfrom kagzi.sdk.errors import ConfigError\n"
        "try: Encryption(keys={'a': bytes(32)}, current='a')\nexcept ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install cryptography" in done.stdout


def test_the_built_in_codecs_satisfy_the_protocol() -> None:
    codecs: list[Codec] = [Compression(), encryption(), Reversed()]
    assert [codec.name for codec in codecs] == ["zlib", "aes256gcm", "reversed"]
