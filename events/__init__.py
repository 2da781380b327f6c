"""What happened: the interaction log, the representation log, histories, time splits and metrics."""
