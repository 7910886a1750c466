"""A proxy's durable state: one SQLite file, one writer thread, short reads.

Everything that must survive a crash is a row here, and the durable counters change in the transaction that
changes the rows they count. Nothing above this package opens the file.
"""
