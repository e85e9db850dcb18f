"""Actor and critic heads.

- `base`: base classes; `actor`: actors.
- `critic`: critics that regress returns; `two_hot`: critics that classify them; `ensemble`: the layers of both.
- `popart`: normalisation of values.
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
