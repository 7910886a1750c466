"""Dumps: rows as what a dump file holds, the folder of files, and taking them in again."""
