"""Backup, restore, check and verification of whole stores."""
