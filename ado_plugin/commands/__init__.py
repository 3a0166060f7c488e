"""The subcommands that run and set up services."""
