"""Records: the outcome of one dispatch, on disk and relative to others."""
