"""Modules of a golden model computed again on what the modules of mine were given.

factory.load_model(spec)        the model that a function of the user's makes
copies.Copies(model, ...)       that model in full precision, and rounded as mine is
replay.StepReplay(...)          the modules of one step of a dump of mine, each on its own inputs
"""
