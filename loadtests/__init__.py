"""Load on a live server: Locust users that rank and check what they get."""
