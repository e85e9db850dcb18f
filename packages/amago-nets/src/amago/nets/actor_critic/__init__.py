"""Actor and critic heads.

- `base`: what all heads share.
- `actor`: the actors; `critic`: the critics that regress returns, on the layers of `ensemble`.
- `popart`: normalisation of critic targets.
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
