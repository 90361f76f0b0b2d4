"""A random order of 0..n-1 that can be asked for any place, without keeping the order in memory."""

import hashlib

ROUNDS = 4


def shuffled(place: int, count: int, seed: int, epoch: int = 0) -> int:
    """What stands at `place` in the permutation of range(count) that `seed` and `epoch` choose.

    A Feistel network over the smallest even number of bits that holds `count`, walked until it lands inside (Black
    and Rogaway, "Ciphers with arbitrary finite domains", 2002): a bijection, O(1) memory, at most four rounds times
    four walks on average. A training run is therefore resumed from its step number alone.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for round_ in range(ROUNDS):
            key = f"{seed}/{epoch}/{round_}/{right}".encode()
            noise = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            left, right = right, left ^ (noise & mask)
        place = (left << half) | right
        if place < count:
            return place
