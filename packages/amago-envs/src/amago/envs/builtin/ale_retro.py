"""Video games on emulators, Atari and the consoles of stable-retro, under one import path."""

from amago.envs.builtin.atari import ALE, ALEAction, AtariAMAGOWrapper, AtariGame
from amago.envs.builtin.retro import RetroAMAGOWrapper, RetroArcade

__all__ = ["ALE", "ALEAction", "AtariAMAGOWrapper", "AtariGame", "RetroAMAGOWrapper", "RetroArcade"]
