"""The error of those who use neatpack: what is wrong with what they gave it."""


class UserError(ValueError):
    """The user's input is wrong (exit code 2): says what was got, what was expected and the remedy."""
