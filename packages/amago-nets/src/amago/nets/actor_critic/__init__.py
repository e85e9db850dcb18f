"""Actor and critic heads.

`base` holds what all heads share, `actor` the actors; critics, their ensemble layers, PopArt and the two-hot
output are in files of their own.
"""

from amago.nets.actor_critic.actor import Actor, ResidualActor
from amago.nets.actor_critic.base import BaseActorHead, BaseCriticHead

__all__ = ["Actor", "BaseActorHead", "BaseCriticHead", "ResidualActor"]
