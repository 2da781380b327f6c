"""The online path: one request in, one cache read, one ranked answer out."""
