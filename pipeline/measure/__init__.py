"""How long every sample is, to the token, and a store of what was learned on the way."""
