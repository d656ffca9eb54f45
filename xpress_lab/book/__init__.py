"""The course as a static site: pages that work from a folder, without a network."""
