"""The same update written the straightforward way: what the learner benchmark compares with.

Every formula stands where a textbook would put it, in ordinary PyTorch: linear layers, an attention matrix with a
mask that is built for it, critics that get [state, discount, action] spelled out for every discount and action
sample, dense labels, heads that work on padding and are masked afterwards, a copy of the critics for the policy
gradient, and targets that are moved parameter by parameter. Nothing is slower than such code is; nothing is
factored, fused or skipped either.

It passes the same reference cases as the packages' own agents and reads the same state dicts, so both can be given
the same weights and must then give the same loss.

- `sizes`: what determines the shapes of all parameters, from numbers or from a state dict
- `layers`, `transformer`, `encoders`: from observations to states
- `policies`, `heads`: actor, critics, PopArt
- `agents`: the losses of `Agent` and `MultiTaskAgent`
- `update`: one whole update, with optimizer and targets
"""
