"""`python -m monitoring`: write the files."""

from monitoring.files import files

for path, text in files().items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
