"""The exception of the native side. ValueError and TypeError come from Python, before anything has changed."""


class Error(RuntimeError):
    """A failure reported by the C++ library: the text is ``op: argument must be X, got Y``."""
