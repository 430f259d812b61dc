"""All checks. A new check is a function in its module and an entry here; its id is promised to scripts."""

from nanobot.cli.doctor import environment, files, model, plugins, security, skills, stores
from nanobot.cli.doctor.checks import DoctorCheck

CONFIG = DoctorCheck("config", "The config can be used", environment.config_can_be_used, reads_config=False)
HEALTH = (
    CONFIG,
    DoctorCheck("limits", "Spending limits can be enforced", environment.limits_can_be_enforced),
    DoctorCheck("model", "The model answers and calls tools", model.model_works, 90.0, uses_network=True),
    DoctorCheck(
        "files.private", "Config and state are readable only by you", files.files_are_private, reads_config=False
    ),
    DoctorCheck("files.owner", "All files belong to you", files.files_belong_to_user, reads_config=False),
    DoctorCheck("files.folders", "Folders are writable", files.folders_are_there, reads_config=False),
    DoctorCheck("files.templates", "The workspace has its files", files.templates_are_there, reads_config=False),
    DoctorCheck("files.leftovers", "No temporary files are left over", files.no_leftover_files, reads_config=False),
    DoctorCheck("disk", "The disk has free space", files.disk_has_room, reads_config=False),
    DoctorCheck("clock", "The clock is right", environment.clock_is_right),
    DoctorCheck("stores.database", "The database is intact", stores.database_is_sound, 30.0, reads_config=False),
    DoctorCheck("stores.sessions", "Conversations can be read", stores.sessions_can_be_read, 60.0, reads_config=False),
    DoctorCheck("stores.jobs", "Jobs can be read", stores.jobs_can_be_read),
    DoctorCheck("stores.pairing", "Pairing state can be read", stores.pairing_can_be_read),
    DoctorCheck(
        "stores.provenance", "The provenance of files can be read", stores.provenance_can_be_read, reads_config=False
    ),
    DoctorCheck("skills", "Skills can be used", skills.skills_can_be_used),
    DoctorCheck("gateway", "The gateway is healthy", environment.gateway_is_healthy, reads_config=False),
    DoctorCheck("programs", "Programs of MCP servers are installed", environment.programs_are_there),
    DoctorCheck("plugins", "Plugins work", plugins.plugins_are_healthy, 30.0),
    DoctorCheck("sandbox", "Commands run in a sandbox", environment.commands_are_sandboxed),
)
"""Run by `nanobot doctor`, followed by a check for each configured MCP server and channel."""

SECURITY = (
    DoctorCheck(
        "secrets.files", "Config and state are readable only by you", files.files_are_private, reads_config=False
    ),
    DoctorCheck("secrets.kept", "Key files are readable only by you", security.secret_files_are_private),
    DoctorCheck("secrets.plain", "No API key is stored as plain text", security.no_plain_keys),
    DoctorCheck("access.everybody", "Only known people can talk to the bot", security.senders_are_restricted),
    DoctorCheck("approval.off", "Untrusted content cannot act without approval", security.approval_is_on),
    DoctorCheck("approval.always", "Few permanent approvals", security.few_permanent_approvals),
    DoctorCheck("exec.walls", "Commands are confined to the sandbox", security.commands_are_confined),
    DoctorCheck("paths.wide", "Tools can write only where needed", security.write_access_is_narrow),
    DoctorCheck("network.whitelist", "Web tools cannot reach the local network", security.ssrf_whitelist_is_narrow),
    DoctorCheck("network.doors", "No port is open to other machines", security.no_open_ports),
    DoctorCheck("network.plain", "No API key is sent over plain http", security.no_plain_http_keys),
    DoctorCheck("code.foreign", "No unreviewed code runs", security.no_unchosen_code),
)
"""Run by `nanobot doctor --security`."""
