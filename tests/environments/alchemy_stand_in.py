"""A stand-in for dm_alchemy's symbolic level: the same functions, specs, sizes and schedule, and toy rules.

dm_alchemy is not on a package index, so the tests of `SymbolicAlchemy` run on this. Its chemistry is made up: each
potion changes one stone's value by a step that the seed draws. dm_env is the real package.
"""

import dm_env
import numpy as np
from dm_env import specs

TRIALS, STEPS = 10, 20
STONES, POTIONS = 3, 12


class Level(dm_env.Environment):
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._chemistry = self._rng.choice([-1, 1], size=6)

    def observation_spec(self):
        return {"symbolic_obs": specs.Array((39,), np.float32)}

    def action_spec(self):
        return specs.DiscreteArray(40)

    def _new_trial(self) -> None:
        self._values = self._rng.choice([-3, -1, 1], size=STONES).astype(float)
        self._types = self._rng.integers(6, size=POTIONS)
        self._stone_used = np.zeros(STONES, bool)
        self._potion_used = np.zeros(POTIONS, bool)

    def _observation(self):
        stones = [[0, 0, 0, value / 3, 0] for value in self._values]
        potions = [[kind / 3 - 1, 0] for kind in self._types]
        for stone in np.flatnonzero(self._stone_used):
            stones[stone] = [2, 2, 2, 2, 1]
        for potion in np.flatnonzero(self._potion_used):
            potions[potion] = [1, 1]
        return {"symbolic_obs": np.array([*np.ravel(stones), *np.ravel(potions)], np.float32)}

    def reset(self):
        self._step = 0
        self._new_trial()
        return dm_env.restart(self._observation())

    def step(self, action):
        reward = 0.0
        if action > 0:
            stone, what = divmod(action - 1, 1 + POTIONS)
            if not self._stone_used[stone] and what == 0:
                reward = 15.0 if self._values[stone] == 3 else self._values[stone]
                self._stone_used[stone] = True
            elif not self._stone_used[stone] and not self._potion_used[what - 1]:
                change = 2 * self._chemistry[self._types[what - 1]]
                self._values[stone] = np.clip(self._values[stone] + change, -3, 3)
                self._potion_used[what - 1] = True
        self._step += 1
        if self._step == TRIALS * STEPS:
            return dm_env.termination(reward, self._observation())
        if self._step % STEPS == 0:
            self._new_trial()
        return dm_env.transition(reward, self._observation())


made: list[tuple[str, int]] = []


def get_symbolic_alchemy_level(level_name: str, seed: int | None = None) -> Level:
    made.append((level_name, seed))
    return Level(seed)
