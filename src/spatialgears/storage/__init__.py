"""Folders on disk: saved models and runs."""
