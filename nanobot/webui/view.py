"""What the endpoints of the page have in common."""

from nanobot.config.paths import DataPaths
from nanobot.security.http_access import View
from nanobot.webui.services import WebServices


class WebView(View):
    """Some endpoints of the page."""

    def __init__(self, services: WebServices) -> None:
        self.services = services
        self.runtime = services.runtime
        self.sessions = services.runtime.sessions
        self.feed = services.feed
        self.paths = DataPaths(services.runtime.data_dir)
        self.config_file = services.runtime.config.loaded_from.file or self.paths.config

    def on_change(self, topic: str) -> None:
        self.feed.changed(topic)
