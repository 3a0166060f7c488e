"""From files, arrays and tables to stores."""
