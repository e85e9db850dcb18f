"""Procgen games on random levels, with two attempts at each level.

- `TwoAttemptMTProcgen`: the environment; `ProcgenAMAGO`: an AMAGOEnv of it
- `ALL_PROCGEN_GAMES`: the names of the games

Tested with procgen2 0.10.7, gym3 0.3.3 and cffi 2.0 on numpy 2.4.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import Count, check_arguments
from amago.envs.builtin.optional import PROCGEN_INSTALL
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

# The first six have a mode "memory".
ALL_PROCGEN_GAMES = [
    "dodgeball",
    "caveflyer",
    "heist",
    "jumper",
    "maze",
    "miner",
    "fruitbot",
    "plunder",
    "chaser",
    "leaper",
    "bigfish",
    "starpilot",
    "bossfight",
    "ninja",
    "coinrun",
    "climber",
]
_MEMORY_GAMES = frozenset(ALL_PROCGEN_GAMES[:6])
_MODES = ("easy", "hard", "memory-hard")
_ALIAS = "amago_procgen2"
ATTEMPTS = 2

Image = npt.NDArray[np.uint8]


def _import_procgen() -> Any:
    """The module `procgen.env`, without the package's own `__init__`, which imports gym to register ids there."""
    try:
        if _ALIAS not in sys.modules:
            spec = find_spec("procgen")
            if spec is None:
                raise ImportError("No module named 'procgen'")
            package = ModuleType(_ALIAS)
            package.__path__ = list(spec.submodule_search_locations or ())
            sys.modules[_ALIAS] = package
        return import_module(f"{_ALIAS}.env")
    except ImportError as error:
        raise ImportError(f"Procgen games need procgen2 ({error}): {PROCGEN_INSTALL}") from error


class TwoAttemptMTProcgen(gym.Env[Image, int]):
    """Two attempts at one level; every reset draws a game and a level.

    Observation: uint8 (64, 64, 3), 0 to 255; in the second attempt a black square covers rows and columns 1 to 4.
    Actions, Discrete(15): left and down, left, left and up, down, none, up, right and down, right, right and up,
    then the keys D, A, W, S, Q, E. Reward: the game's, times `reward_scales`. An attempt ends when the game ends
    it, or after its time limit (500 to 6000 steps, most 1000).

    Procgen restarts a level in the step that ends an attempt, so that step already shows the first frame of the
    next attempt. After the first attempt one more step follows whose action is ignored, with reward 0 and
    `info["soft_reset"]`. The second one ends the episode, both terminated and truncated. At the end of attempt i,
    1 or 2, `info` has the metric "Episode {i} Success", whether the level was completed. The `info` of a reset has
    `game` and `level`.

    Args:
        games: names from `ALL_PROCGEN_GAMES`.
        distribution_mode: "easy", "hard", or "memory-hard": Procgen's "memory" for the six games that have it,
            "hard" for the others.
        reward_scales: factors on the rewards of games, 1 for those not listed.
        seed_range: first and last level.

    Raises:
        ImportError: if procgen2 or gym3 is not installed; the message has the command.
        ValueError: for an unknown game or mode, or an empty range of levels.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        games: Sequence[str] | str,
        distribution_mode: Literal["easy", "hard", "memory-hard"],
        reward_scales: Mapping[str, float] | None = None,
        seed_range: tuple[Count, Count] = (0, 2000),
    ) -> None:
        games = [games] if isinstance(games, str) else list(games)
        scales = dict(reward_scales or {})
        unknown = [game for game in [*games, *scales] if game not in ALL_PROCGEN_GAMES]
        if unknown or not games:
            raise ValueError(
                f"games and reward_scales must name games of {', '.join(ALL_PROCGEN_GAMES)}, got {unknown}"
            )
        first, last = seed_range
        if not 0 <= first <= last < 2**31:
            raise ValueError(f"seed_range must be a first and a last level in [0, 2**31), got {seed_range!r}")
        self._make: Any = _import_procgen().ProcgenGym3Env
        self.games = games
        self.distribution_mode = distribution_mode
        self.reward_scales = scales
        self.seed_range = (first, last)
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(15)  # type: ignore[assignment]
        self.render_mode = "rgb_array"
        self._procgen: Any = None
        self._action = np.zeros(1, np.int32)
        self._attempt: int | None = None
        self._draw_level()

    def _draw_level(self) -> None:
        first, last = self.seed_range
        self.current_game = self.games[self.np_random.integers(len(self.games))]
        self.current_level = int(self.np_random.integers(first, last + 1))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Draws a game and a level and starts the first attempt."""
        super().reset(seed=seed)
        self._draw_level()
        mode: str = self.distribution_mode
        if mode == "memory-hard":
            mode = "memory" if self.current_game in _MEMORY_GAMES else "hard"
        previous = self._procgen
        self._procgen = self._make(
            num=1,
            env_name=self.current_game,
            num_levels=1,
            start_level=self.current_level,
            distribution_mode=mode,
            num_threads=0,
            rand_seed=int(self.np_random.integers(2**31)),
        )
        # Closed only now: the last one to close unloads the library with its images, which take a second to load.
        if previous is not None:
            previous.close()
        self._attempt = 1
        self._soft_reset_is_next = False
        return self._observe()[1], {"game": self.current_game, "level": self.current_level}

    def _observe(self) -> tuple[float, Image, bool]:
        """Reward of the last step, observation, and whether this is the first frame of an attempt."""
        reward, observations, first = self._procgen.observe()  # copies, which do not belong to Procgen
        self._frame: Image = observations["rgb"][0]
        return float(reward[0]), self._frame, bool(first[0])

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """One frame; after the end of the first attempt only the announcement of the second."""
        if self._attempt is None:
            raise RuntimeError("TwoAttemptMTProcgen.step needs a running episode: call reset() first")
        if self._soft_reset_is_next:
            self._soft_reset_is_next = False
            return self._frame.copy(), 0.0, False, False, {"soft_reset": True}
        if not 0 <= action < 15:
            raise ValueError(f"action must be from 0 to 14, got {action}")
        self._action[0] = action
        self._procgen.act(self._action)
        reward, frame, ended = self._observe()
        reward *= self.reward_scales.get(self.current_game, 1.0)
        info: dict[str, Any] = {}
        done = False
        if ended:
            success = float(self._procgen.get_info()[0]["prev_level_complete"])
            info[f"{AMAGO_ENV_LOG_PREFIX} Episode {self._attempt} Success"] = success
            done = self._attempt == ATTEMPTS
            self._attempt = None if done else self._attempt + 1
            self._soft_reset_is_next = not done
        if done or self._attempt == ATTEMPTS:
            frame[1:5, 1:5] = 0
        return frame, reward, done, done, info

    def render(self) -> Image:
        """The last observation, uint8 (64, 64, 3)."""
        frame: Image = self._frame.copy()
        return frame

    def close(self) -> None:
        if self._procgen is not None:
            self._procgen.close()
        self._procgen = self._attempt = None


class ProcgenAMAGO(AMAGOEnv):
    """AMAGOEnv of a `TwoAttemptMTProcgen`, named after the current game.

    Raises:
        TypeError: for another environment.
    """

    def __init__(self, env: TwoAttemptMTProcgen) -> None:
        if not isinstance(env, TwoAttemptMTProcgen):
            raise TypeError(f"env must be a TwoAttemptMTProcgen, got {env!r}")
        super().__init__(env)
        self._procgen_env = env

    @property
    def env_name(self) -> str:
        """The current game."""
        return self._procgen_env.current_game
