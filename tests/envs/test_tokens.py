"""Texts are observed as tokens of a fixed length, the same in every process."""

import os
import string
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from amago.envs import AMAGOEnv
from amago.envs.observations import ObservationMapper
from amago.envs.tokens import FIRST_TOKEN, MISSION_WORDS, UNKNOWN, mission_words, tokenizer_for
from amago.envs.vector import make_vector_env


class MissionSpace(spaces.Space):
    """Has what minigrid's class of this name has; the real one is in tests/environments."""

    def __init__(self, mission_func, ordered_placeholders=None):
        super().__init__(dtype=str)
        self.mission_func, self.ordered_placeholders = mission_func, ordered_placeholders

    def sample(self, mask=None, probability=None):
        choices = [self.np_random.choice(options) for options in self.ordered_placeholders or []]
        return self.mission_func(*choices)

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return self is other


class BabyAIMissionSpace(MissionSpace):
    def __init__(self):
        super().__init__(lambda: "go")


def test_characters_of_a_text_space():
    mapper = ObservationMapper(spaces.Text(5, charset="cba"), batched_envs=1)
    box = mapper.space["observation"]
    assert (box.shape, box.dtype, box.low.min(), box.high.max()) == ((5,), np.uint8, 0, 4)
    np.testing.assert_array_equal(mapper("abc")["observation"], [[2, 3, 4, 0, 0]])
    np.testing.assert_array_equal(mapper("")["observation"], [[0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(mapper("cxc")["observation"], [[4, UNKNOWN, 4, 0, 0]])
    many = ObservationMapper(spaces.Text(2, charset="".join(map(chr, range(300, 900)))), batched_envs=1)
    assert many.space["observation"].dtype == np.int32
    np.testing.assert_array_equal(many(chr(300) + chr(899))["observation"], [[2, 601]])


def test_words_of_missions():
    space = MissionSpace(
        lambda verb, color: f"{verb} the {color} Dragon, then go to the goal.",
        [["fight", "run away from"], ["red", "green"]],
    )
    tokenizer = tokenizer_for(space)
    assert tokenizer.vocabulary == (*MISSION_WORDS, "away", "dragon", "fight", "run")
    assert tokenizer.length == 20
    tokens = tokenizer("run away from the green Dragon, then go to the goal.")
    assert [tokenizer.vocabulary[token - FIRST_TOKEN] for token in tokens[:11]] == mission_words(
        "run away from the green dragon then go to the goal"
    )
    assert tokens[11:] == [0] * 9
    assert tokenizer("Sing, RED goal") == [
        UNKNOWN,
        *(FIRST_TOKEN + MISSION_WORDS.index(word) for word in ("red", "goal")),
        *[0] * 17,
    ]


def test_a_long_mission_makes_the_tokens_longer_and_babyai_has_a_length_of_its_own():
    wordy = MissionSpace(
        lambda part: f"go {part}", [[" ".join(["left"] * 5), " ".join(["right"] * 30), "up"]]
    )
    assert tokenizer_for(wordy).length == 31
    assert tokenizer_for(BabyAIMissionSpace()).length == 72
    assert tokenizer_for(MissionSpace(lambda: "open the door")).vocabulary == MISSION_WORDS
    assert tokenizer_for(spaces.Discrete(3)) is None


def test_tokens_are_the_same_in_every_process():
    program = (
        "from gymnasium.spaces import Text\n"
        "from amago.envs.tokens import tokenizer_for\n"
        "print(tokenizer_for(Text(8, charset=frozenset('hello world')))('lo wed'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert printed == {"[6, 7, 2, 9, 4, 3, 0, 0]\n"}


def test_wrong_texts_are_refused():
    mapper = ObservationMapper(spaces.Dict({"say": spaces.Text(3)}), batched_envs=1)
    with pytest.raises(ValueError, match="'abcd' has 4 tokens, and its space allows 3"):
        mapper({"say": "abcd"})
    with pytest.raises(TypeError, match="must be a string, got 7"):
        mapper({"say": 7})
    with pytest.raises(ValueError, match="has 3 texts for 2 environments"):
        ObservationMapper(spaces.Text(3), batched_envs=2)(["a", "b", "c"])


class Teller(gym.Env):
    """Says how long it has been playing; an episode lasts three steps."""

    observation_space = spaces.Dict({"said": spaces.Text(3, charset=string.digits), "n": spaces.Discrete(4)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return {"said": "000", "n": 0}, {}

    def step(self, action):
        self.time += 1
        return {"said": str(self.time) * 3, "n": self.time}, 0.0, self.time == 3, False, {}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_texts_through_vector_environments(mode):
    env = make_vector_env([lambda: AMAGOEnv(Teller(), "teller")] * 2, env_mode=mode)
    np.testing.assert_array_equal(env.reset().obs["said"], [[2, 2, 2]] * 2)
    actions = np.zeros((2, 1), np.int64)
    np.testing.assert_array_equal(env.step(actions).inputs.obs["said"], [[3, 3, 3]] * 2)
    env.step(actions)
    step = env.step(actions)
    np.testing.assert_array_equal(step.final_obs["said"], [[5, 5, 5]] * 2)
    np.testing.assert_array_equal(step.inputs.obs["said"], [[2, 2, 2]] * 2)
    env.close()


@pytest.mark.skipif(not hasattr(gym.vector, "AutoresetMode"), reason="gymnasium 0.29 has one mode")
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_texts_of_a_gymnasium_vector_environment(mode):
    rows = gym.vector.SyncVectorEnv([Teller] * 2, autoreset_mode=gym.vector.AutoresetMode[mode])
    env = make_vector_env([lambda: AMAGOEnv(rows, "teller", batched_envs=2)], env_mode="already_vectorized")
    np.testing.assert_array_equal(env.reset().obs["said"], [[2, 2, 2]] * 2)
    for _ in range(3):
        step = env.step(np.zeros((2, 1), np.int64))
    np.testing.assert_array_equal(step.final_obs["said"], [[5, 5, 5]] * 2)
    np.testing.assert_array_equal(step.final_obs["n"].argmax(1), [3, 3])
    env.close()
