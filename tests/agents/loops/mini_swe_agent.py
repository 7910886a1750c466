"""mini-swe-agent as it comes: its own configuration, its own shell, in a folder of its own."""

import tempfile
from pathlib import Path

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from told import QUESTION, tell

config = yaml.safe_load((Path(package_dir) / "config" / "default.yaml").read_text())
with tempfile.TemporaryDirectory() as folder:
    agent = DefaultAgent(
        LitellmModel(model_name="openai/gpt-4o", cost_tracking="ignore_errors"),
        LocalEnvironment(cwd=folder),
        **config["agent"],
    )
    ended = agent.run(QUESTION)
calls = sum(len(message.get("extra", {}).get("actions", [])) for message in agent.messages)
tell(calls=calls, answer=str(ended))
