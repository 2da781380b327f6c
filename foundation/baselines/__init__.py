"""Models that GEM is measured against: they read the same batches and answer for the same tasks."""
