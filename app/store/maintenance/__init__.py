"""Backup, restoration, checking and verification of whole stores."""
