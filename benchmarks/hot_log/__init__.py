"""The benchmark of the hot log: what is measured (one noun a file), and how it is reported."""
