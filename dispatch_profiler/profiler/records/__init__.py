"""Records: the outcome of each dispatch, how it is stored, and how it compares with others."""
