"""Atari 2600 games of the Arcade Learning Environment.

- `AtariGame`: one game; `ALE`: several, one drawn per episode; `AtariAMAGOWrapper`: an AMAGOEnv of either

Tested with ale-py 0.12.1, whose wheel has the ROMs, and OpenCV 5.0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import gin
import gymnasium as gym
import numpy as np
from annotated_types import MinLen

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import Name, NonNegative, Probability, Size, check_arguments
from amago.envs.builtin.images import Frame, image_space, order_axes, resize
from amago.envs.builtin.optional import optional_import

_DIRECTIONS = ("up", "right", "left", "down", "upright", "upleft", "downright", "downleft")
# in ALE's order
_ACTIONS = ("noop", "fire", *_DIRECTIONS, *(f"{direction}fire" for direction in _DIRECTIONS))


@dataclass(frozen=True)
class ALEAction:
    """The joystick's four directions and its button, each pressed or not.

    `str2action` maps the name of an action, such as "upleftfire", to its index in ALE's full set.
    """

    up: bool
    down: bool
    left: bool
    right: bool
    fire: bool

    str2action: ClassVar[dict[str, int]] = {name: index for index, name in enumerate(_ACTIONS)}

    def to_discrete(self) -> int:
        """The index of the action in ALE's full set, 0 to 17; opposite directions cancel each other."""
        vertical = "" if self.up == self.down else "up" if self.up else "down"
        horizontal = "" if self.left == self.right else "left" if self.left else "right"
        return self.str2action[vertical + horizontal + ("fire" if self.fire else "") or "noop"]


@gin.configurable(module="amago.envs.builtin.ale_retro")
class AtariGame(gym.Env[Frame, Any]):
    """An Atari 2600 game of the Arcade Learning Environment.

    Observation: the screen resized to (C, H, W) uint8, 0 to 255; C is 3, or 1 for `grayscale`. Reward: the change
    of the score in `frame_skip` frames. Terminated when the game is over, truncated after `time_limit` frames.
    `info` has ALE's `lives`, `episode_frame_number` and `frame_number`.

    Actions:
    "discrete": Discrete(18) in ALE's order, see `ALEAction`, or those that the game uses;
    "multibinary": MultiBinary(5), up, down, left, right and fire, where opposite directions cancel each other;
    "continuous": Box(3,), radius in [0, 1], angle in [-pi, pi], fire in [0, 1].

    Args:
        game: name, such as "Pong" or "MsPacman"; `ale_py.roms.get_all_rom_ids()` lists them in snake case.
        resolution: (H, W).
        grayscale: observe luminance. An observation is then the pixelwise maximum of the last two frames of the
            step, against flickering sprites; a coloured one is the last frame.
        time_limit: frames of an episode.
        frame_skip: frames per step, in which the action is repeated.
        channels_last: observations (H, W, C).
        action_space: "discrete", "multibinary" or "continuous".
        sticky_action_prob: probability that a frame repeats the action of the frame before.
        terminal_on_life_loss: terminate as soon as there are fewer lives than at the reset. The next reset starts
            a new game.
        version: version of the id in gymnasium, ALE/{game}-{version}.
        full_action_space: "discrete" has all 18 actions of the console, which all games share. False keeps those
            that the game uses, 6 of Pong.
        continuous_action_threshold: radius from which a direction, and value from which fire, counts as pressed.
        clip_rewards: clip the reward of a step to [-1, 1].
        render_mode: None, "rgb_array" or "human".

    Raises:
        ImportError: if ale-py or OpenCV is not installed.
        ValueError: for an unknown action space or a number out of its range.
        gymnasium.error.UnregisteredEnv: for an unknown game or version.
    """

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        game: Name,
        resolution: tuple[Size, Size] = (84, 84),
        grayscale: bool = False,
        time_limit: Size = 108_000,
        frame_skip: Size = 4,
        channels_last: bool = False,
        action_space: Literal["discrete", "multibinary", "continuous"] = "discrete",
        sticky_action_prob: Probability = 0.25,
        terminal_on_life_loss: bool = False,
        version: str = "v5",
        full_action_space: bool = True,
        continuous_action_threshold: NonNegative = 0.5,
        clip_rewards: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self._cv2 = optional_import("cv2", extra="atari")
        _check_ale_version(optional_import("ale_py", extra="atari"))
        self.rom_name = game
        self.resolution = (resolution[0], resolution[1])
        self.grayscale = grayscale
        self.time_limit = time_limit
        self.frame_skip = frame_skip
        self.channels_last = channels_last
        self.terminal_on_life_loss = terminal_on_life_loss
        self.clip_rewards = clip_rewards
        self.render_mode = render_mode
        emulator: Any = gym.make(
            f"ALE/{game}-{version}",
            full_action_space=full_action_space or action_space == "multibinary",
            repeat_action_probability=sticky_action_prob,
            # Grey screens are read from the emulator, only those of the last two frames.
            obs_type="ram" if grayscale else "rgb",
            frameskip=1 if grayscale else self.frame_skip,
            continuous=action_space == "continuous",
            continuous_action_threshold=continuous_action_threshold,
            max_num_frames_per_episode=self.time_limit,
            render_mode=render_mode,
            disable_env_checker=True,
        ).unwrapped
        self._emulator = emulator
        screen = emulator.ale.getScreenDims()
        self._screens = np.zeros((2, *screen), np.uint8)
        self.observation_space = image_space(1 if grayscale else 3, self.resolution, channels_last)
        self._multibinary = action_space == "multibinary"
        self.action_space = gym.spaces.MultiBinary(5) if self._multibinary else emulator.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Starts a new game; the seed, if given, makes its sticky actions reproducible."""
        super().reset(seed=seed)
        screen, info = self._emulator.reset(seed=seed, options=options)
        if self.grayscale:
            screen = self._screens[1]
            self._emulator.ale.getScreenGrayscale(screen)
        self._lives = info["lives"]
        self._frames = 0
        return self._observation(screen), info

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Repeats one action for `frame_skip` frames."""
        if self._multibinary:
            action = ALEAction(*(bool(bit) for bit in action)).to_discrete()
        advance = self._advance_gray if self.grayscale else self._emulator.step
        screen, reward, terminated, truncated, info = advance(action)
        self._frames += self.frame_skip
        truncated = truncated or self._frames >= self.time_limit
        if self.terminal_on_life_loss and info["lives"] < self._lives:
            terminated = True
        if self.clip_rewards:
            reward = min(max(reward, -1.0), 1.0)
        return self._observation(screen), float(reward), terminated, truncated, info

    def _advance_gray(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        previous, last = self._screens
        two_frames = False
        total = 0.0
        for frame in range(self.frame_skip):
            if frame > 0 and frame == self.frame_skip - 1:
                self._emulator.ale.getScreenGrayscale(previous)
                two_frames = True
            _, reward, terminated, truncated, info = self._emulator.step(action)
            total += reward
            if terminated or truncated:
                break
        self._emulator.ale.getScreenGrayscale(last)
        if two_frames:
            np.maximum(previous, last, out=last)
        return last, total, terminated, truncated, info

    def _observation(self, screen: Frame) -> Frame:
        return order_axes(resize(self._cv2, screen, self.resolution), self.channels_last)

    def render(self) -> Any:
        """The screen in its own resolution, uint8 (210, 160, 3), if `render_mode` is "rgb_array"."""
        return self._emulator.render()

    def close(self) -> None:
        self._emulator.close()


def _check_ale_version(ale_py: ModuleType) -> None:
    version = tuple(int(part) for part in ale_py.__version__.split(".")[:2])
    if version < (0, 10):
        raise ImportError(
            f"ale-py {ale_py.__version__} is installed, and Atari games need 0.10 or later, which has continuous "
            "actions: pip install 'amago-envs[atari]'"
        )


class ALE(gym.Env[Frame, Any]):
    """Several Atari games: every reset draws one, and each keeps its own emulator.

    Observations, actions, rewards and ends are those of `AtariGame`. `rom_name`, `time_limit` and `resolution` are
    those of the current game.

    Args:
        game_names: names of the games.
        make_game: makes a game from its name; by default an `AtariGame` with the settings of gin.

    Raises:
        ValueError: without a game, or if games have other spaces than the first one.
    """

    metadata = AtariGame.metadata

    @check_arguments
    def __init__(
        self,
        game_names: Annotated[Sequence[str], MinLen(1)],
        make_game: Callable[[str], AtariGame] = AtariGame,
    ) -> None:
        self.game_names = list(game_names)
        self._make_game = make_game
        self._games: dict[str, AtariGame] = {}
        self._seeds: dict[str, int] = {}
        self._current = self._draw()
        self.observation_space = self._current.observation_space
        self.action_space = self._current.action_space
        self.render_mode = self._current.render_mode

    def _draw(self) -> AtariGame:
        name = self.game_names[self.np_random.integers(len(self.game_names))]
        if name not in self._games:
            game = self._make_game(name)
            first = next(iter(self._games.values()), game)
            for kind in ("observation_space", "action_space"):
                if getattr(game, kind) != getattr(first, kind):
                    raise ValueError(
                        f"{name} has the {kind} {getattr(game, kind)}, and {first.rom_name} "
                        f"{getattr(first, kind)}: games must have the same"
                    )
            self._games[name] = game
        return self._games[name]

    @property
    def rom_name(self) -> str:
        """Name of the current game."""
        return self._current.rom_name

    @property
    def time_limit(self) -> int:
        """Frames of an episode of the current game."""
        return self._current.time_limit

    @property
    def resolution(self) -> tuple[int, int]:
        """(H, W) of the current game."""
        return self._current.resolution

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Draws a game and starts it; a seed makes all later draws and games reproducible."""
        super().reset(seed=seed)
        if seed is not None:
            # Loading a ROM anew with a seed takes 80 ms, so a game gets its seed when it is drawn next.
            self._seeds = {name: int(self.np_random.integers(2**31)) for name in self.game_names}
        self._current = self._draw()
        return self._current.reset(seed=self._seeds.pop(self.rom_name, None), options=options)

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """A step of the current game."""
        return self._current.step(action)

    def render(self) -> Any:
        """As `AtariGame.render`."""
        return self._current.render()

    def close(self) -> None:
        for game in self._games.values():
            game.close()


class AtariAMAGOWrapper(AMAGOEnv):
    """AMAGOEnv of an `AtariGame` or `ALE`, named after the current game, such as "Pong".

    Raises:
        TypeError: for another environment.
    """

    def __init__(self, env: AtariGame | ALE) -> None:
        if not isinstance(env, AtariGame | ALE):
            raise TypeError(f"env must be an AtariGame or ALE, got {env!r}")
        super().__init__(env)
        self._atari = env

    @property
    def env_name(self) -> str:
        """Name of the current game."""
        return self._atari.rom_name
