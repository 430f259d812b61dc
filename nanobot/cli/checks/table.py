"""All checks, one line each. A new one is a function in its file and a line here; its id is a promise to scripts."""

from nanobot.cli.checks import files, model, plugins, settings, skills, stores, walls, world
from nanobot.cli.checks.findings import Check

CONFIG = Check("config", "The config can be used", settings.config_can_be_used, reads_config=False)
HEALTH = (
    CONFIG,
    Check("limits", "What may be spent", settings.limits_are_kept),
    Check("model", "The model answers and calls tools", model.model_works, 90.0, asks_outside=True),
    Check("files.private", "What is secret is yours alone", files.files_are_private, reads_config=False),
    Check("files.owner", "Nothing belongs to another user", files.files_are_ours, reads_config=False),
    Check("files.folders", "Folders can be written", files.folders_are_there, reads_config=False),
    Check("files.templates", "The workspace has its files", files.templates_are_there, reads_config=False),
    Check("files.leftovers", "No write was left half done", files.nothing_is_left_over, reads_config=False),
    Check("disk", "The disk has room", files.disk_has_room, reads_config=False),
    Check("clock", "The clock is right", world.clock_is_right),
    Check("stores.journal", "The journal is sound", stores.journal_is_sound, 30.0, reads_config=False),
    Check("stores.sessions", "Conversations can be read", stores.sessions_can_be_read, 60.0, reads_config=False),
    Check("stores.ledger", "The ledger can be read", stores.ledger_can_be_read, 30.0, reads_config=False),
    Check("stores.jobs", "Jobs can be read", stores.jobs_can_be_read),
    Check("stores.pairing", "Pairing can be read", stores.pairing_can_be_read),
    Check("stores.approvals", "What you allowed can be read", stores.approvals_can_be_read, reads_config=False),
    Check("skills", "Skills can be used", skills.skills_can_be_used),
    Check("gateway", "The gateway is well", world.gateway_is_well, reads_config=False),
    Check("programs", "Programs of MCP servers are there", world.programs_are_there),
    Check("plugins", "Plugins are well", plugins.plugins_are_well, 30.0),
    Check("sandbox", "Commands run behind a wall", world.commands_are_walled),
)
"""What `nanobot doctor` looks at; MCP servers and the channels that are switched on come behind it."""

SECURITY = (
    Check("secrets.files", "What is secret is yours alone", files.files_are_private, reads_config=False),
    Check("secrets.kept", "Files that keep keys are yours alone", walls.secret_files_are_private),
    Check("secrets.plain", "Where keys stand", walls.keys_are_kept_elsewhere),
    Check("access.everybody", "Strangers stay out", walls.strangers_stay_out),
    Check("approval.off", "Outside words cause nothing unasked", walls.owners_are_asked),
    Check("approval.always", "Little is allowed for always", walls.little_is_allowed_for_always),
    Check("exec.walls", "Commands stay inside", walls.commands_stay_inside),
    Check("paths.wide", "Tools write in narrow places", walls.places_are_narrow),
    Check("network.whitelist", "Requests stay outside", walls.requests_stay_outside),
    Check("network.doors", "Doors are closed", walls.doors_are_closed),
    Check("network.plain", "Keys travel hidden", walls.keys_travel_hidden),
    Check("code.foreign", "No code runs that nobody chose", walls.own_code_is_wanted),
)
"""What `nanobot doctor --security` looks at."""
