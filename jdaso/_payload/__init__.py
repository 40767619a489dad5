"""Payload of an exchange."""
