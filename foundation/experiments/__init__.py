"""The experiments behind the claims about GEM: each compares models in one harness and leaves figures with raw data."""
