"""Doubles of the systems that we talk to: for the demo and for tests, over real sockets, never for production."""
