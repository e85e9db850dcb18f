"""Toy environments for memory and adaptation that need only gymnasium, under one import path."""

from amago.envs.builtin.frozen_lake import MetaFrozenLake
from amago.envs.builtin.room_key_door import RoomKeyDoor

__all__ = ["MetaFrozenLake", "RoomKeyDoor"]
