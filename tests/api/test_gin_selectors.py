"""The names by which gin files set arguments: full, partial and short, whichever file a class lives in."""

import importlib
import inspect
from collections.abc import Iterator

import gin
import pytest

CONFIGURABLE = {
    "amago.agent": "Multigammas Agent MultiTaskAgent binary_filter leaky_relu_filter exp_filter",
    "amago.experiment": "Experiment",
    "amago.envs.exploration": "BilevelEpsilonGreedy EpsilonGreedy",
    "amago.nets.tstep_encoders": "FFTstepEncoder CNNTstepEncoder",
    "amago.nets.traj_encoders": "FFTrajEncoder GRUTrajEncoder TformerTrajEncoder MambaTrajEncoder",
    "amago.nets.transformer": "FlashAttention SlidingWindowFlexAttention ClippedSlidingSinkAttention SigmaReparam"
    " AttentionLayer TransformerLayer LearnablePosEmb",
    "amago.nets.actor_critic": "Actor ResidualActor NCritics NCriticsTwoHot PopArtLayer",
    "amago.nets.policy_dists": "Discrete TanhGaussian GMM Beta",
    "amago.nets.cnn": "GridworldCNN NatureishCNN IMPALAishCNN",
    "amago.nets.utils": "InputNorm",
}
NAMES = [f"{module}.{name}" for module, names in CONFIGURABLE.items() for name in names.split()]


@pytest.fixture(autouse=True)
def clean_gin() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.mark.parametrize("full_name", NAMES)
def test_every_spelling_of_a_selector_binds_the_same_argument(full_name: str) -> None:
    module, _, name = full_name.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    argument = next(p.name for p in parameters if p.default is not inspect.Parameter.empty)
    for spelling in (full_name, f"{module.rpartition('.')[2]}.{name}", name):
        with gin.unlock_config():
            gin.bind_parameter(f"{spelling}.{argument}", spelling)
        assert gin.query_parameter(f"{full_name}.{argument}") == spelling


@pytest.mark.parametrize(
    "denied", ["amago.nets.actor_critic.PopArtLayer.enabled", "amago.nets.utils.InputNorm.skip"]
)
def test_arguments_denied_to_gin(denied: str) -> None:
    importlib.import_module(denied.rsplit(".", 2)[0])
    with pytest.raises(ValueError, match=denied.rsplit(".", 1)[1]):
        gin.bind_parameter(denied, True)
