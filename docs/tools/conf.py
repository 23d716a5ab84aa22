"""Settings of Sphinx for the site (`./dev docs`). No page may ask a host: no fonts, scripts or pictures from others."""

project = "Moonhalo"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Moonhalo"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 4
# Code that is cut short is not always whole in its language.
suppress_warnings = ["misc.highlighting_failure"]
smartquotes = False
# Results of a search would show lines of the pages, which a browser does not let a page of file:// read.
html_show_search_summary = False
