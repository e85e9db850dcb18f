"""Random streams: one independent generator per consumer of random numbers, all derived from one seed.

No global generator is used. Every environment, exploration wrapper, policy, loader and recorder has the stream of
its own role, rank and index, so that adding a consumer does not change the numbers of another.
"""

import numpy as np

ROLES: dict[str, int] = {
    "env": 0,
    "exploration": 1,
    "policy": 2,
    "loader": 3,
    "init": 4,
    "recorder": 5,
    "eval": 6,
}


def _sequence(seed: int | None, role: str, rank: int, index: int) -> np.random.SeedSequence:
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r} of a random stream; the roles are {', '.join(ROLES)}")
    if seed is None:
        return np.random.SeedSequence()
    for name, value in (("seed", seed), ("rank", rank), ("index", index)):
        if value < 0:
            raise ValueError(f"{name} of a random stream is {value}; give an integer of at least 0")
    return np.random.SeedSequence([int(seed), ROLES[role], int(rank), int(index)])


def stream(seed: int | None, role: str, rank: int = 0, index: int = 0) -> np.random.Generator:
    """A consumer's generator, seeded by `SeedSequence([seed, role code, rank, index])`.

    Args:
        seed: the run's seed, at least 0; None draws fresh entropy from the operating system.
        role: kind of consumer, one of `ROLES`.
        rank: index of the process in a distributed run.
        index: index of the consumer within its role, e.g. the number of the environment.

    Raises:
        ValueError: for an unknown role or a negative number.
    """
    return np.random.default_rng(_sequence(seed, role, rank, index))


def stream_seed(seed: int | None, role: str, rank: int = 0, index: int = 0) -> int:
    """An integer in [0, 2^31) from the same sequence, for libraries that take a seed instead of a generator."""
    return int(_sequence(seed, role, rank, index).generate_state(1, np.uint32)[0] >> 1)
