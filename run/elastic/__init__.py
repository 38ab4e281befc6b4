"""Training that goes on with other workers when hosts come or go."""
