"""Proof methods, one pure module each. They judge bytes against key material; which one judges is the profile's choice."""
