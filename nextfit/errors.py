"""Errors that carry a message for a person: what was found, what was expected, what to change.

Anything a user or a file can cause is one of these. The command line prints the message and exits
with code 2, the server answers with it in the API's own shape; neither shows a traceback.
"""


class NextFitError(Exception):
    """Base of every refusal."""


class ConfigError(NextFitError):
    """A model or serving configuration that cannot be used."""


class CheckpointError(NextFitError):
    """A model file that is damaged, incomplete or of an unknown layout."""


class RequestError(NextFitError):
    """A request that cannot be served; `param` names the field at fault (OpenAI's error shape)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
