"""The subcommands that build stores."""
