"""Settings: the file, the environment, and the sections."""


class OperatorError(Exception):
    """An error whose text is one line for the operator, and contains no secret."""
