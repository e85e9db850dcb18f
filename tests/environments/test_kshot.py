"""KShot and missions as tokens on MiniGrid, and short trainings with them."""

import gymnasium as gym
import minigrid  # noqa: F401  (registers its environments)
import numpy as np
import pytest

from amago.envs import AMAGOEnv, KShot
from amago.envs.tokens import MISSION_WORDS, UNKNOWN, mission_words, tokenizer_for


def test_attempts_at_one_grid():
    env = KShot(gym.make("MiniGrid-MultiRoom-N2-S4-v0"), 2)
    grids = []
    for episode in range(3):
        obs, _ = env.reset(seed=0 if episode == 0 else None)
        grids.append(env.unwrapped.grid.encode())
        starts = [(tuple(env.unwrapped.agent_pos), obs["direction"])]
        terminated = False
        while not terminated:
            obs, _, terminated, _, info = env.step(1)  # turns until the time is over
            if info.get("soft_reset"):
                np.testing.assert_array_equal(env.unwrapped.grid.encode(), grids[-1])
                starts.append((tuple(env.unwrapped.agent_pos), obs["direction"]))
        assert starts == starts[:1] * 2
        assert info["AMAGO_LOG_METRIC Episode 1 Return"] == 0.0
    assert not np.array_equal(grids[0], grids[1])
    assert not np.array_equal(grids[1], grids[2])


def test_every_word_of_minigrid_s_missions_is_known():
    seen = set()
    # Environments of the "WFC" kind need networkx.
    for name in [
        name for name in gym.registry if name.startswith(("MiniGrid-", "BabyAI-")) and "WFC" not in name
    ]:
        space = gym.make(name).observation_space["mission"]
        tokenizer = tokenizer_for(space)
        assert tokenizer.vocabulary == MISSION_WORDS
        seen.add(tokenizer.length)
        for _ in range(5):
            assert UNKNOWN not in tokenizer(space.sample())
    assert seen == {20, 72}
    for name in (
        "BabyAI-BossLevel-v0",
        "BabyAI-SynthSeq-v0",
        "BabyAI-GoToSeq-v0",
        "BabyAI-MoveTwoAcrossS5N2-v0",
    ):
        env = AMAGOEnv(gym.make(name))
        for seed in range(5):
            timestep, _ = env.reset(seed=seed)
            words = mission_words(env.unwrapped.mission)
            tokens = timestep.obs["mission"][0]
            assert [MISSION_WORDS[token - 2] for token in tokens if token] == words
            assert (tokens[len(words) :] == 0).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_short_training_on_minigrid_with_missions(mode, short_training):
    experiment = short_training(
        lambda: AMAGOEnv(KShot(gym.make("MiniGrid-GoToDoor-5x5-v0"), 2), "go_to_door"), env_mode=mode
    )
    space = experiment.train_envs.observation_space
    assert set(space) == {"attempt", "direction", "image", "mission"}
    assert type(experiment.policy.tstep_encoder).__name__ == "MultiModalTstepEncoder"
    assert type(experiment.policy.tstep_encoder.obs_encoders["mission_encoder"]).__name__ == "TokenFeatures"


def test_a_short_training_on_cart_pole(short_training):
    short_training(lambda: AMAGOEnv(KShot(gym.make("CartPole-v1"), 3), "cart_pole_3_shot"))
