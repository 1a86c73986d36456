"""The common language of both sides: what every tensor of a layer is, and who has the same."""
