"""The page listens on the loopback alone, and a browser is let in by the URL that is printed."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.commands import CLI, invoke
from tests.unit.client.inspect.sites import whole
from tests.waiting import PATIENCE, until

from rolloutfleet.http_serving import HEAD_BYTES
from rolloutfleet.inspect.serving import listen

LOOK = """
import json, os, pathlib, re, sys, urllib.error, urllib.parse, urllib.request
file = pathlib.Path(urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[2]).path))
said = {"asked": sys.argv[2], "file": str(file), "content": file.read_text()}
try:
    urllib.request.urlopen(re.search(r"url=(http://[^/]+/)", said["content"])[1], timeout=30)
except urllib.error.HTTPError as error:
    said["answer"] = error.code
said["mode"] = file.parent.stat().st_mode & 0o777
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(json.dumps(said))
part.rename(sys.argv[1])
"""


def test_it_listens_on_the_loopback_alone_and_answers_without_waiting_for_acknowledgements() -> None:
    with listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1" and listening.proto == socket.IPPROTO_TCP
        with pytest.raises(OSError, match="in use"):
            listen(listening.getsockname()[1])


def test_a_browser_is_opened_by_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    """Its command line, which all users of the machine can see, has no token."""
    look, seen = tmp_path / "look.py", tmp_path / "seen.json"
    look.write_text(LOOK)
    environment = {**os.environ, "BROWSER": f"{sys.executable} {look} {seen} %s"}
    command = (*CLI, "inspect", "--dumps", str(whole(tmp_path / "dumps")), "--port", "0", "--open")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        assert "Ctrl-C" in process.stdout.readline()
        until(seen.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    said = json.loads(seen.read_text())
    assert "token" in url and "token" not in said["asked"] and said["mode"] == 0o700
    assert said["answer"] == 401, "what is opened can ask for the page before it ends"
    assert f"url={url}" in said["content"] and not Path(said["file"]).exists()


def test_who_opens_the_url_is_let_in_also_when_the_terminal_is_gone(tmp_path: Path) -> None:
    command = (*CLI, "inspect", "--dumps", str(whole(tmp_path)), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        assert "Ctrl-C" in process.stdout.readline()
        process.stdout.close()
        try:
            with httpx.Client(follow_redirects=True) as browser:
                assert browser.get(url).status_code == 200
        finally:
            process.terminate()


def test_the_page_is_served_on_where_nohup_has_a_hangup_ignored(tmp_path: Path) -> None:
    command = ("nohup", *CLI, "inspect", "--dumps", str(whole(tmp_path)), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        assert "Ctrl-C" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        try:
            with httpx.Client(follow_redirects=True) as browser:
                assert browser.get(url).status_code == 200
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_folder_that_is_no_tokenizer_is_said_in_a_line() -> None:
    done = invoke("inspect", "--dumps", ".", "--port", "0", "--tokenizer", "none")
    assert done.returncode in (1, 2) and "is not a tokenizer" in done.stderr and "Traceback" not in done.stderr


def test_a_head_without_an_end_is_refused_before_anybody_is_let_in(tmp_path: Path) -> None:
    command = (*CLI, "inspect", "--dumps", str(whole(tmp_path)), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, port = urlsplit(process.stdout.readline().split()[1]).netloc.split(":")
        try:
            with socket.create_connection((host, int(port)), PATIENCE) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"y" * HEAD_BYTES)
                assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 431 ")
        finally:
            process.terminate()
