"""Console games of stable-retro.

- `RetroArcade`: games and start states, one drawn per episode; `RetroAMAGOWrapper`: an AMAGOEnv of it

Tested with stable-retro 1.0.1, whose wheel has one game, and OpenCV 5.0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import Positive, Size, check_arguments
from amago.envs.builtin.images import Frame, image_space, order_axes, resize
from amago.envs.builtin.optional import optional_import

FRAMES_PER_MINUTE = 3600
BUTTONS = 12
BORDER = 2  # pixels
# RGB of the border that tells the console
BORDER_COLORS: dict[str, tuple[int, int, int]] = {
    "Snes": (18, 196, 65),
    "Nes": (191, 40, 17),
    "PCEngine": (232, 211, 19),
    "GameGear": (25, 230, 199),
    "Genesis": (8, 8, 201),
    "GbColor": (124, 49, 189),
    "GbAdvance": (182, 49, 189),
    "GameBoy": (59, 58, 58),
    "Gb": (59, 58, 58),
    "Sms": (255, 255, 255),
    "Atari2600": (219, 157, 147),
}


class RetroArcade(gym.Env[Frame, Any]):
    """Console games of stable-retro: every reset draws one of the given games and start states.

    Observation: the screen resized to (3, H, W) uint8, with a border of two pixels whose colour tells the console
    (`BORDER_COLORS`). Actions: MultiBinary(12), the first ones of which are the console's buttons, where opposite
    directions cancel each other; or Discrete(n). Reward: that of the game's scenario, summed over `frame_skip`
    frames. Terminated by the scenario; truncated after `time_limit_minutes` of game time. The `info` of a reset
    has `game`, that of a step the game's memory variables. `rom_name` is "{game}_{state}".

    There can be one emulator per process, so several actors need env_mode="async". It starts with the first reset.

    Args:
        game_start_dict: {game: [start states]}, such as {"Airstriker-Genesis-v0": ["Level1"]}.
            `python -m stable_retro.import FOLDER` imports ROMs.
        resolution: (H, W).
        time_limit_minutes: game time of an episode, at 60 frames a second.
        frame_skip: frames per step, in which the action is repeated.
        channels_last: observations (H, W, 3).
        use_discrete_actions: Discrete actions, all combinations of buttons that the console's games use: 18
            (Atari2600) to 468 (Snes). Possible only if all consoles have equally many.
        render_mode: "rgb_array" or "human", which opens a window.

    Raises:
        ImportError: if stable-retro or OpenCV is not installed.
        FileNotFoundError: for a game whose ROM is not imported.
        ValueError: for an unknown start state or a console that is not supported.
    """

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        game_start_dict: Mapping[str, Sequence[str]],
        resolution: tuple[Size, Size] = (84, 84),
        time_limit_minutes: Positive = 20,
        frame_skip: Size = 8,
        channels_last: bool = False,
        use_discrete_actions: bool = False,
        render_mode: str = "rgb_array",
    ) -> None:
        self._cv2 = optional_import("cv2", extra="retro")
        self._retro = optional_import("stable_retro", extra="retro")
        self.game_start_dict = {game: list(states) for game, states in game_start_dict.items()}
        self._starts = [(game, state) for game, states in self.game_start_dict.items() for state in states]
        if not self._starts:
            raise ValueError(f"game_start_dict must name a game and a start state, got {game_start_dict!r}")
        self._consoles = {game: self._console_of(game) for game in self.game_start_dict}
        for game, states in self.game_start_dict.items():
            self._check_states(game, states)
        self.resolution = (resolution[0], resolution[1])
        self.frame_skip = frame_skip
        self.time_limit = math.ceil(time_limit_minutes * FRAMES_PER_MINUTE / self.frame_skip)
        self.channels_last = channels_last
        self.use_discrete_actions = use_discrete_actions
        self.render_mode = render_mode
        self.observation_space = image_space(3, self.resolution, channels_last)
        self.action_space = (
            gym.spaces.Discrete(self._num_combinations())
            if use_discrete_actions
            else gym.spaces.MultiBinary(BUTTONS)
        )
        self._emulator: Any = None
        self._running: tuple[str, str] | None = None
        self._start = self._draw()

    def _console_of(self, game: str) -> str:
        rom: str = self._retro.data.get_romfile_path(game)
        console: str = self._retro.get_romfile_system(rom)
        buttons = len(self._retro.get_system_info(console)["buttons"])
        if console not in BORDER_COLORS or buttons > BUTTONS:
            raise ValueError(
                f"{game} runs on the console {console} with {buttons} buttons; supported are consoles of up to "
                f"{BUTTONS}: {', '.join(BORDER_COLORS)}"
            )
        return console

    def _check_states(self, game: str, states: list[str]) -> None:
        known = self._retro.data.list_states(game)
        for state in states:
            if state.removesuffix(".state") not in known:
                raise ValueError(f"{game} has no start state {state!r}; it has {', '.join(known)}")

    def _num_combinations(self) -> int:
        counts = {
            console: math.prod(map(len, self._retro.get_system_info(console)["actions"]))
            for console in set(self._consoles.values())
        }
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"use_discrete_actions=True needs consoles with equally many actions, got {counts}: leave it out"
            )
        return next(iter(counts.values()))

    def _draw(self) -> tuple[str, str]:
        return self._starts[self.np_random.integers(len(self._starts))]

    @property
    def rom_name(self) -> str:
        """The current game and start state, "{game}_{state}"."""
        game, state = self._start
        return f"{game}_{state.removesuffix('.state')}"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Draws a game and a start state; the seed decides the draws, and all else in a game is fixed."""
        super().reset(seed=seed)
        self._start = self._draw()
        if self._running != self._start:
            self._start_emulator(*self._start)
        self._steps = 0
        screen, info = self._emulator.reset()
        return self._observation(screen), {**info, "game": self._start[0]}

    def _start_emulator(self, game: str, state: str) -> None:
        self.close()
        actions = self._retro.Actions
        self._emulator = self._retro.make(
            game=game,
            state=state,
            use_restricted_actions=actions.DISCRETE if self.use_discrete_actions else actions.FILTERED,
            render_mode=self.render_mode,
        )
        self._running = (game, state)
        found = self._emulator.action_space
        if self.use_discrete_actions and found != self.action_space:
            raise ValueError(
                f"{game} has the actions {found}, unlike its console: use_discrete_actions must be False"
            )

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Repeats one action for `frame_skip` frames, or until the game ends."""
        if self._emulator is None:
            raise RuntimeError("RetroArcade.step needs a running game: call reset() first")
        if not self.use_discrete_actions:
            action = action[: self._emulator.num_buttons]
        total = 0.0
        for _ in range(self.frame_skip):
            screen, reward, terminated, truncated, info = self._emulator.step(action)
            total += reward
            if terminated or truncated:
                break
        self._steps += 1
        truncated = truncated or self._steps >= self.time_limit
        return self._observation(screen), total, terminated, truncated, info

    def _observation(self, screen: Frame) -> Frame:
        frame = resize(self._cv2, screen, self.resolution)
        color = BORDER_COLORS[self._consoles[self._start[0]]]
        for edge in (frame[:BORDER], frame[-BORDER:], frame[:, :BORDER], frame[:, -BORDER:]):
            edge[...] = color
        return order_axes(frame, self.channels_last)

    def render(self) -> Any:
        """The screen in its own resolution, uint8 (h, w, 3), if `render_mode` is "rgb_array"."""
        if self._emulator is None:
            raise RuntimeError("RetroArcade.render needs a running game: call reset() first")
        return self._emulator.render()

    def close(self) -> None:
        """Ends the emulator; the next reset starts another."""
        if self._emulator is not None:
            self._emulator.close()
        self._emulator = None
        self._running = None


class RetroAMAGOWrapper(AMAGOEnv):
    """AMAGOEnv of a `RetroArcade`, named after the current game and start state.

    Raises:
        TypeError: for another environment.
    """

    def __init__(self, env: RetroArcade) -> None:
        if not isinstance(env, RetroArcade):
            raise TypeError(f"env must be a RetroArcade, got {env!r}")
        super().__init__(env)
        self._arcade = env

    @property
    def env_name(self) -> str:
        """The current game and start state."""
        return self._arcade.rom_name
