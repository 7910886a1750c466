"""Exports as files: a folder of parts, each acknowledged once it is durable. `rolloutfleet export --to` runs it.

docs/export.md says what stands in the files, and why a run that was killed loses nothing and writes nothing twice.
"""

from rolloutfleet.files.folder import ExportFolder, FolderInUse, WrongFolder
from rolloutfleet.files.forms import FileForm, MissingLibrary, check_form
from rolloutfleet.files.writing import Progress, Summary, export_to

__all__ = [
    "ExportFolder",
    "FileForm",
    "FolderInUse",
    "MissingLibrary",
    "Progress",
    "Summary",
    "WrongFolder",
    "check_form",
    "export_to",
]
