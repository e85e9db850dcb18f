"""Goal embedders: golden numbers, and goals that do not fit."""

import pytest
import torch

from amago.nets.goal_embedders import FFGoalEmb, TokenGoalEmb


@pytest.mark.parametrize(("name", "embedder_type"), [("goal_ff", FFGoalEmb), ("goal_token", TokenGoalEmb)])
def test_embeddings_equal_the_golden_numbers(torch_golden, assert_forward, name, embedder_type):
    case = torch_golden(name)
    embedder = embedder_type(**{key: value for key, value in case.args.items() if key != "cls"})
    embedder.load_state_dict(case.state, strict=True)
    assert_forward(embedder(case.tensors["goals"]).detach(), case.tensors["y"])


@pytest.mark.parametrize("embedder_type", [FFGoalEmb, TokenGoalEmb])
def test_a_zero_embedding_keeps_its_shape(embedder_type):
    embedder = embedder_type(goal_length=3, goal_dim=2, goal_emb_dim=8, zero_embedding=True)
    out = embedder(torch.ones(4, 5, 3, 2))
    assert out.shape == (4, 5, 8)
    assert not out.any()


def test_goals_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"goals must end in shape \(3, 2\), got \(4, 5, 2, 3\)"):
        FFGoalEmb(goal_length=3, goal_dim=2)(torch.ones(4, 5, 2, 3))
