"""Vector environments: in one process, in worker processes, or a single batched environment.

- `base`: VectorEnv, PolicyInput, VectorStep
- `make`: make_vector_env and make_split_vector_env, the factories
- `shared_arrays`: the arrays of a step, in private or shared memory
- `env_group`: steps the environments of one process, each in an `env_slot`; `batched_stepper`: the fast path for
  single environments
- `autoreset`: stores the final observation of an episode and starts the next one
- `sync`, `async_env`: SyncVectorEnv and AsyncVectorEnv; `worker`: the main function of the worker processes
- `double_buffer`: two AsyncVectorEnvs; one steps while the policy computes actions for the other
- `gin_bindings`: sends gin bindings to spawned workers
"""

from amago.envs.vector.async_env import AsyncVectorEnv
from amago.envs.vector.base import EnvWorkerError, PolicyInput, VectorEnv, VectorStep
from amago.envs.vector.double_buffer import SplitVectorEnv
from amago.envs.vector.make import make_split_vector_env, make_vector_env
from amago.envs.vector.sync import SyncVectorEnv

__all__ = [
    "AsyncVectorEnv",
    "EnvWorkerError",
    "PolicyInput",
    "SplitVectorEnv",
    "SyncVectorEnv",
    "VectorEnv",
    "VectorStep",
    "make_split_vector_env",
    "make_vector_env",
]
