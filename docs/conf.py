"""The documentation site: `sphinx-build -W -b html docs build/site`."""

project = "nanobot"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "nanobot"
html_show_copyright = False
html_show_sphinx = False
