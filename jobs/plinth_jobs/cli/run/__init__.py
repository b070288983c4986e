"""Commands about training runs: `plinth run COMMAND`."""
