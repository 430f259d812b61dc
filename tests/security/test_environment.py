"""What programs need of our environment, and nothing else of it."""

from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.mcp.transport import server_environment
from nanobot.agent.tools.shell import command_environment
from nanobot.config.schema import McpServerConfig

NEEDED = {"PATH": "/bin", "LC_ALL": "C", "SSL_CERT_FILE": "/ca.pem"}
OURS = {**NEEDED, "API_KEY": "k", "XDG_DATA_HOME": "/d", "BASH_ENV": "x"}


def test_a_command_and_a_server_get_what_programs_need_and_what_their_owner_names():
    command = command_environment(OURS, ExecPolicy(allowed_env_keys=("api_key",)))
    server = server_environment(OURS, McpServerConfig(command="y", env={"TOKEN": "t"}))

    assert command.keys() & OURS.keys() == NEEDED.keys() | {"API_KEY"}
    assert server.keys() == NEEDED.keys() | {"XDG_DATA_HOME", "TOKEN"}
