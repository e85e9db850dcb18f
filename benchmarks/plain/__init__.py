"""A plain PyTorch implementation of the update, the baseline of the learner benchmark.

It uses ordinary linear layers, an explicit attention mask and matrix, critics on the concatenation of state,
discount and action for every discount and action sample, dense labels, heads on padded batches with a mask in
the loss, a copy of the critics for the policy gradient, and target updates per parameter. Nothing is factored,
fused or skipped.

It passes the golden cases of the agents and reads their state dicts: with equal weights both give the same loss.

- `sizes`: what determines the shapes of all parameters, from numbers or from a state dict
- `layers`, `transformer`, `encoders`: from observations to states
- `policies`, `heads`: actor, critics, PopArt
- `agents`: the losses of `Agent` and `MultiTaskAgent`
- `update`: one whole update, with optimizer and targets
"""
