"""Tests on a real cluster."""
