"""The documentation as a site: pages that are written by code, their navigation, links and pictures."""
