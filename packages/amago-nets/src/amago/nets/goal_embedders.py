"""Goal embeddings: encoders of short sequences of numbers or tokens that describe the task.

Shapes: B batch, L timesteps, K goals of width D each.
"""

from abc import ABC, abstractmethod
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from amago.nets.arguments import Size, check_arguments


class _GoalEmb(nn.Module, ABC):
    """Base class: checks the shape of goals, and returns zeros if `zero_embedding`."""

    def __init__(self, goal_length: int, goal_dim: int, goal_emb_dim: int, zero_embedding: bool) -> None:
        super().__init__()
        self.goal_shape = (goal_length, goal_dim)
        self.goal_emb_dim = goal_emb_dim
        self.zero_embedding = zero_embedding

    def forward(self, goals: Tensor) -> Tensor:
        """Goals (B, L, K, D) to (B, L, goal_emb_dim); ValueError for another K or D."""
        if tuple(goals.shape[-2:]) != self.goal_shape:
            raise ValueError(f"goals must end in shape {self.goal_shape}, got {tuple(goals.shape)}")
        emb = self.embed(goals.flatten(-2))
        return torch.zeros_like(emb) if self.zero_embedding else emb

    @abstractmethod
    def embed(self, goals: Tensor) -> Tensor:
        """Flattened goals (B, L, K · D) to (B, L, goal_emb_dim)."""


class FFGoalEmb(_GoalEmb):
    """Two linear layers on the concatenated goals.

    Args:
        goal_length: number K of goals.
        goal_dim: width D of a goal.
        goal_emb_dim: width of the embedding, at least 2.
        zero_embedding: return zeros of the same shape.
    """

    @check_arguments
    def __init__(
        self,
        goal_length: Size,
        goal_dim: Size,
        goal_emb_dim: Annotated[Size, Ge(2)] = 32,
        zero_embedding: bool = False,
    ) -> None:
        super().__init__(goal_length, goal_dim, goal_emb_dim, zero_embedding)
        self.ff1 = nn.Linear(goal_length * goal_dim, goal_emb_dim // 2)
        self.ff2 = nn.Linear(goal_emb_dim // 2, goal_emb_dim)
        self.goal_norm = nn.LayerNorm(goal_emb_dim)

    def embed(self, goals: Tensor) -> Tensor:
        """Flattened goals (B, L, K · D) to (B, L, goal_emb_dim)."""
        out: Tensor = self.goal_norm(self.ff2(F.leaky_relu(self.ff1(goals))))
        return out


class TokenGoalEmb(_GoalEmb):
    """A recurrent network over goals of integer tokens.

    Args:
        goal_length: number K of goals.
        goal_dim: width D of a goal.
        min_token: smallest integer of a goal.
        max_token: largest integer of a goal.
        goal_emb_dim: width of the embedding.
        embedding_dim: width of a token's embedding.
        hidden_size: width of the recurrent layer.
        zero_embedding: return zeros of the same shape.
    """

    @check_arguments
    def __init__(
        self,
        goal_length: Size,
        goal_dim: Size,
        min_token: int = -128,
        max_token: int = 128,
        goal_emb_dim: Size = 32,
        embedding_dim: Size = 16,
        hidden_size: Size = 64,
        zero_embedding: bool = False,
    ) -> None:
        super().__init__(goal_length, goal_dim, goal_emb_dim, zero_embedding)
        if max_token < min_token:
            raise ValueError(f"max_token must be at least min_token={min_token}, got {max_token!r}")
        self.min_token = min_token
        self.max_token = max_token
        self.goal_emb = nn.Embedding(max_token - min_token + 1, embedding_dim)
        self.goal_rnn = nn.RNN(embedding_dim, hidden_size, batch_first=True)
        self.goal_ff = nn.Linear(hidden_size, goal_emb_dim)
        self.goal_norm = nn.LayerNorm(goal_emb_dim)

    def embed(self, goals: Tensor) -> Tensor:
        """Flattened integer goals (B, L, K · D) to (B, L, goal_emb_dim)."""
        tokens = goals.long()
        sequences = tokens.reshape(-1, tokens.shape[-1]) - self.min_token  # (B L, K D)
        _, last_hidden = self.goal_rnn(self.goal_emb(sequences))  # (1, B L, hidden)
        out: Tensor = self.goal_norm(self.goal_ff(last_hidden.squeeze(0)))
        return out.reshape(*tokens.shape[:-1], self.goal_emb_dim)
