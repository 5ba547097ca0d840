"""The webhook gateway: verifies native provider webhooks, forwards closed envelopes to GitHub workflows."""
