"""Elastic training: training resumes with other workers when hosts come or go."""
