"""A module for each command. `compactory_cli.main` puts them together."""
