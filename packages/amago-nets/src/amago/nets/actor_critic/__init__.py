"""Actor and critic heads.

`base` holds what all heads share, `actor` the actors, `critic` the ensemble of critics on its layers in
`ensemble`, and `popart` the normalisation of their values.
"""

from amago.nets.actor_critic.actor import Actor, ResidualActor
from amago.nets.actor_critic.base import BaseActorHead, BaseCriticHead
from amago.nets.actor_critic.critic import NCritics, gammas_as_input_seq
from amago.nets.actor_critic.popart import PopArtLayer

__all__ = [
    "Actor",
    "BaseActorHead",
    "BaseCriticHead",
    "NCritics",
    "PopArtLayer",
    "ResidualActor",
    "gammas_as_input_seq",
]
