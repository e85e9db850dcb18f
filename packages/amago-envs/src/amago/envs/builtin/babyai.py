"""BabyAI: k attempts at the same instruction in the same level, from many tasks (Chevalier-Boisvert et al. 2019).

Needs minigrid, and opencv for full images; tested with minigrid 3.2.0 and opencv-python-headless 5.0. A single
task without attempts is `AMAGOEnv(gymnasium.make("BabyAI-GoToLocal-v0"))`.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.builtin.images import resize
from amago.envs.builtin.optional import optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX
from amago.envs.registry import did_you_mean

PREFIX = "BabyAI-"
# Parts of the names of tasks whose missions or maps do not fit the observation.
BANNED_BABYAI_TASKS = [
    "GoToSeq",
    "OpenRedBlueDoorsDebug",
    "OpenTwoDoors",
    "OpenDoorsOrderN4Debug",
    "OpenDoorsOrder",
    "PutNextLocal",
    "PutNext",
    "MiniBossLevel",
    "BossLevel",
    "BossLevelNoUnlock",
    "SynthSeq",
    "SynthLoc",
    "Synth",
    "MoveTwoAcross",
]
IMAGE_SHAPES = {
    "partial-grid": (7, 7, 3),
    "full-grid": (22, 22, 3),
    "partial-image": (63, 63, 3),
    "full-image": (63, 63, 3),
}
MISSION_WORDS = 9
BLANK, UNKNOWN, FIRST_WORD = range(3)
PARTIAL_TILE, FULL_TILE = 9, 8  # pixels per cell


def babyai_ids() -> list[str]:
    """Ids of all BabyAI environments that minigrid registers, in its order.

    Raises:
        ImportError: if minigrid is not installed.
    """
    optional_import("minigrid", extra="babyai")
    return [env_id for env_id in gym.registry if env_id.startswith(PREFIX)]


def __getattr__(name: str) -> Any:
    if name == "ALL_BABYAI_TASKS":  # needs minigrid
        tasks = [
            env_id for env_id in babyai_ids() if not any(banned in env_id for banned in BANNED_BABYAI_TASKS)
        ]
        globals()[name] = tasks
        return tasks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class MultitaskMetaBabyAI(gym.Env[dict[str, Any], int]):
    """k attempts at one level; each reset draws a task and a level, uniformly.

    Layout, start and instruction are the same in every attempt. An attempt ends with success or after minigrid's
    max_steps (16 to 1080, by task). The next step ignores its action, has reward 0 and returns the first
    observation of the next attempt; attempt k terminates the episode at once. Never truncated.

    Observation, a Dict:
        image, uint8: "partial-grid" (7, 7, 3), object, colour and state ids of the view in front of the agent;
            "full-grid" (22, 22, 3), those of the whole map (width, height), padded with zeros; "partial-image"
            (63, 63, 3), the view in pixels; "full-image" (63, 63, 3), the map, stretched.
        mission, int32 (9,) from 0 to 31: 0 blank, 1 unknown word, else 2 + position in `WORDS`.
        extra, float32 (5,): one-hot direction, then attempt / k, counted from 1. In the step that ends an attempt
            it counts the next one, so it ends at (k + 1) / k.

    Actions: Discrete(7): left, right, forward, pick up, drop, toggle, done. Reward: 1 - 0.9 * steps / max_steps
    for success, per attempt, else 0. Metrics: "Episode {i} Success", i from 1, in the step that ends attempt i.
    `info` is empty otherwise.

    The environment of a task is built when the task is first drawn, and kept.

    Args:
        task_names: ids, with or without "BabyAI-"; `ALL_BABYAI_TASKS` of this module are those that fit.
        k_episodes: attempts per level.
        seed_range: lowest and highest seed of levels, both included. Use other ranges for training and evaluation.
        observation_type: of the image, see above.
        render_mode: None, "human" or "rgb_array".

    Attributes:
        task_names: without "BabyAI-". `current_task` (also `env_name`) is the one being played.
        current_episode: the attempt, from 1.

    Raises:
        ImportError: if minigrid, or opencv for "full-image", is not installed.
        ValueError: for an unknown task or observation type, an empty list or range; from `reset`, for a mission of
            more than nine words or a map beyond 22 by 22, which banned tasks have.
    """

    WORDS = (
        *("a", "ball", "behind", "blue", "box", "door", "door,", "front", "go", "green", "grey", "in", "key"),
        *("left", "object", "of", "on", "open", "pick", "purple", "red", "right", "the", "then", "to", "up"),
        *("yellow", "you", "your"),
    )
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        task_names: Sequence[str] | str,
        k_episodes: Size = 2,
        seed_range: tuple[Count, Count] = (0, 1_000_000),
        observation_type: str = "partial-grid",
        render_mode: str | None = None,
    ) -> None:
        known = babyai_ids()
        if isinstance(task_names, str):
            task_names = [task_names]
        if not task_names:
            raise ValueError("task_names is empty: give at least one BabyAI task")
        self.task_names = [name.removeprefix(PREFIX) for name in task_names]
        for name in self.task_names:
            if PREFIX + name not in known:
                raise ValueError(
                    f"task_names has {name!r}, which minigrid does not have.{did_you_mean(PREFIX + name, known)}"
                )
        if observation_type not in IMAGE_SHAPES:
            raise ValueError(
                f"observation_type must be one of {', '.join(IMAGE_SHAPES)}, got {observation_type!r}"
            )
        low, high = seed_range
        if low > high:
            raise ValueError(f"seed_range must be (lowest, highest), got {seed_range!r}")
        self.k_episodes = k_episodes
        self.seed_range = (low, high)
        self.observation_type = observation_type
        self.render_mode = render_mode
        ids = optional_import("minigrid.core.constants", extra="babyai")
        self._agent_ids = (ids.OBJECT_TO_IDX["agent"], ids.COLOR_TO_IDX["red"])
        if observation_type == "full-image":
            self._cv2 = optional_import("cv2", extra="babyai")
        last = np.array([1.0, 1.0, 1.0, 1.0, (self.k_episodes + 1) / self.k_episodes], np.float32)
        self.observation_space = gym.spaces.Dict(
            {
                "image": gym.spaces.Box(0, 255, IMAGE_SHAPES[observation_type], np.uint8),
                "mission": gym.spaces.Box(0, FIRST_WORD + len(self.WORDS), (MISSION_WORDS,), np.int32),
                "extra": gym.spaces.Box(np.zeros_like(last), last),
            }
        )
        self.action_space = gym.spaces.Discrete(7)  # type: ignore[assignment]
        self._tokens = {word: FIRST_WORD + i for i, word in enumerate(self.WORDS)}
        self._envs: dict[str, gym.Env[Any, Any]] = {}
        self._mission: str | None = None
        self._mission_tokens = np.zeros(MISSION_WORDS, np.int32)
        self.current_task = self.task_names[0]
        self.current_episode = 1
        self._running = False

    @property
    def env_name(self) -> str:
        return self.current_task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draws a task and a level, and starts the first attempt. A seed fixes this and all later draws."""
        super().reset(seed=seed)
        self.current_task = self.task_names[self.np_random.integers(len(self.task_names))]
        self._env = self.sample_new_env(self.current_task)
        self._level_seed = int(self.np_random.integers(*self.seed_range, endpoint=True))
        self.current_episode = 1
        self._running = True
        return self._start_attempt(), {}

    def sample_new_env(self, env_name: str) -> gym.Env[Any, Any]:
        """minigrid's environment of a task, in which the next attempts are played."""
        env_id = PREFIX + env_name.removeprefix(PREFIX)
        if env_id not in self._envs:
            self._envs[env_id] = gym.make(env_id, disable_env_checker=True, render_mode=self.render_mode)
        return self._envs[env_id]

    def _start_attempt(self) -> dict[str, Any]:
        with contextlib.redirect_stdout(None):  # minigrid prints each level that it rejects
            raw_obs, _ = self._env.reset(seed=self._level_seed)
        self._attempt_over = False
        return self.create_observation(raw_obs)

    def _encode_mission(self, mission: str) -> npt.NDArray[np.int32]:
        if mission == self._mission:
            return self._mission_tokens
        words = mission.split(" ")
        if len(words) > MISSION_WORDS:
            raise ValueError(
                f"the mission of {self.current_task} has {len(words)} words, more than {MISSION_WORDS}: "
                f"{mission!r}. Choose tasks from ALL_BABYAI_TASKS"
            )
        tokens = np.full(MISSION_WORDS, BLANK, np.int32)
        tokens[: len(words)] = [self._tokens.get(word, UNKNOWN) for word in words]
        tokens.flags.writeable = False  # all observations of the level share it
        self._mission, self._mission_tokens = mission, tokens
        return tokens

    def create_observation(self, raw_obs: dict[str, Any]) -> dict[str, Any]:
        """The observation for one of minigrid's, of the level that is being played.

        Subclasses may override it to add keys, after adding their spaces to `observation_space`.
        """
        extra = np.zeros(5, np.float32)
        extra[raw_obs["direction"]] = 1.0
        extra[4] = self.current_episode / self.k_episodes
        return {
            "image": self._image(raw_obs),
            "mission": self._encode_mission(raw_obs["mission"]),
            "extra": extra,
        }

    def _image(self, raw_obs: dict[str, Any]) -> npt.NDArray[np.uint8]:
        level: Any = self._env.unwrapped
        image: npt.NDArray[np.uint8] = raw_obs["image"]
        if self.observation_type == "full-grid":
            image = np.zeros(IMAGE_SHAPES["full-grid"], np.uint8)
            if level.width > image.shape[0] or level.height > image.shape[1]:
                raise ValueError(f"the map of {self.current_task} is larger than {image.shape[:2]}")
            image[: level.width, : level.height] = level.grid.encode()
            column, row = level.agent_pos
            image[column, row] = (*self._agent_ids, level.agent_dir)
        elif self.observation_type == "partial-image":
            image = level.get_frame(tile_size=PARTIAL_TILE, agent_pov=True)
        elif self.observation_type == "full-image":
            frame = level.get_frame(highlight=level.highlight, tile_size=FULL_TILE)
            image = resize(self._cv2, frame, IMAGE_SHAPES["full-image"][:2])
        return image

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Takes one action, or starts the next attempt when the last step ended one."""
        if not self._running:
            raise RuntimeError("MultitaskMetaBabyAI.step needs a running episode: call reset() first")
        if self._attempt_over:
            return self._start_attempt(), 0.0, False, False, {}
        raw_obs, raw_reward, terminated, truncated, _ = self._env.step(action)
        reward = float(raw_reward)
        info: dict[str, Any] = {}
        if terminated or truncated:
            info[f"{AMAGO_ENV_LOG_PREFIX} Episode {self.current_episode} Success"] = float(reward > 0)
            self._attempt_over = True
            self.current_episode += 1
            self._running = self.current_episode <= self.k_episodes
        return self.create_observation(raw_obs), reward, not self._running, False, info

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
