"""Actor and critic heads.

`base` holds the base classes, `actor` the actors, `critic` the regressing critics, `two_hot` the classifying
critics,
`ensemble` the layers of both, and `popart` the normalisation of values.
"""

from amago.nets.actor_critic.actor import Actor, ResidualActor
from amago.nets.actor_critic.base import BaseActorHead, BaseCriticHead
from amago.nets.actor_critic.critic import NCritics, gammas_as_input_seq
from amago.nets.actor_critic.popart import PopArtLayer
from amago.nets.actor_critic.two_hot import BinDist, NCriticsTwoHot

__all__ = [
    "Actor",
    "BaseActorHead",
    "BaseCriticHead",
    "BinDist",
    "NCritics",
    "NCriticsTwoHot",
    "PopArtLayer",
    "ResidualActor",
    "gammas_as_input_seq",
]
