"""Recurrent PPO beside AMAGO: the same environments, inputs and steps."""
